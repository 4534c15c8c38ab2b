"""The package without PyTorch: the choice of the library, options, errors, state as bytes."""
import ctypes
import os
import subprocess
import sys
import unittest

import natgrad
from natgrad import _abi, _core, _library


def run(text, **environment):
    """Run in another Python process, because a process loads a library once."""
    env = {**os.environ, **environment}
    env = {name: value for name, value in env.items() if value is not None}
    return subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True)


class Loading(unittest.TestCase):
    def test_no_pytorch_is_imported(self):
        done = run("import natgrad, sys; natgrad.options(); assert 'torch' not in sys.modules")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_file_that_is_named_is_taken_or_refused(self):
        done = run("import natgrad; natgrad.options()", NATGRAD_LIBRARY="/nowhere/libnatgrad.so.0")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/nowhere/libnatgrad.so.0 (NATGRAD_LIBRARY)", done.stderr)
        self.assertNotIn("the system", done.stderr)  # no other library was tried

    def test_another_library_is_named(self):
        done = run("import natgrad; natgrad.options()", NATGRAD_LIBRARY="libm.so.6")
        self.assertIn("ImportError: natgrad: libm.so.6 (NATGRAD_LIBRARY) is not libnatgrad", done.stderr)
        done = run("import natgrad._abi as abi; abi.CALLS += '; int32_t ng_new(void)'; import natgrad; natgrad.options()")
        self.assertRegex(done.stderr, "ImportError: natgrad: .* is older than this package: .*ng_new")

    def test_settings_of_openblas_hold_while_it_loads(self):
        text = ("import os; from natgrad import _library\nwith _library._openblas_environment(): print(os.environ['OPENBLAS_THREAD_TIMEOUT'])\n"
                "print(os.environ.get('OPENBLAS_THREAD_TIMEOUT'))")
        self.assertEqual(run(text, OPENBLAS_THREAD_TIMEOUT=None).stdout.split(), ["18", "None"])
        self.assertEqual(run(text, OPENBLAS_THREAD_TIMEOUT="20").stdout.split(), ["20", "20"])

    def test_kernels_are_chosen_and_the_environment_is_as_before(self):
        text = ("import natgrad, os; print(natgrad.build_info().get('kernel'), natgrad.build_info()['blas'],"
                "os.environ.get('OPENBLAS_CORETYPE'))")
        alone = run(text, OPENBLAS_CORETYPE=None).stdout.split()
        self.assertEqual(alone[-1], "None")
        blas = natgrad.build_info()["blas"]
        if _library._has_avx512() and "OpenBLAS" in blas and "DYNAMIC_ARCH" in blas:
            self.assertEqual(alone[0], "SkylakeX")
            self.assertEqual(run(text, OPENBLAS_CORETYPE="Haswell").stdout.split()[0], "Haswell")


class Core(unittest.TestCase):
    def model(self, **chosen):
        options = _core.Options()
        for name, value in chosen.items():
            options.set(name, value)
        p = _core.Precond(options)
        layer = _core.new_struct(_abi.ng_layer, _abi.NG_LINEAR)
        setattr(layer, "name", b"fc")
        setattr(layer, "in", 3)
        layer.out, layer.bias = 2, 0
        p.call("add_layer", ctypes.byref(layer), None)
        p.call("ready")
        return p

    def test_tables(self):
        self.assertIn("eva", [row["name"] for row in natgrad.methods()])
        damping = [row for row in natgrad.options() if row["name"] == "damping"][0]
        self.assertGreater(float(damping["standard"]), 0)
        self.assertIn("factor_decay", [row["name"] for row in natgrad.published("kaisa")])

    def test_refusals_are_exceptions_that_name_it(self):
        with self.assertRaisesRegex(natgrad.ArgumentError, "did you mean 'damping'"):
            _core.Options().set("dampin", 1)
        with self.assertRaisesRegex(ValueError, "damping"):
            _core.Options().set("damping", -1.0)
        with self.assertRaisesRegex(natgrad.Error, "ng_ready"):
            self.model().call("ready")

    def test_state_as_bytes(self):
        first, second, other = self.model(), self.model(), self.model(damping=0.5, method="eva")
        state = first.save()
        second.load(state)
        self.assertEqual(second.save(), state)
        with self.assertRaises(natgrad.Error):
            other.load(state)
        with self.assertRaises(natgrad.Error):
            second.load(state[:-1])

    def test_spelling(self):
        for value, text in ((True, "1"), (0.1, "0.1"), (3, "3"), (["a", "b"], "a|b"), (None, "none"), ("x", "x")):
            self.assertEqual(_core.option_text("name", value), text.encode())


if __name__ == "__main__":
    unittest.main()
