"""The package without PyTorch: the choice of the library, options, errors, state as bytes."""
import ctypes
import os
import pathlib
import runpy
import subprocess
import sys
import unittest

import natgrad
from natgrad import _abi, _core, _library


def run_python(text, **environment):
    """Run in another Python process, because a process loads a library once."""
    env = {**os.environ, **environment}
    env = {name: value for name, value in env.items() if value is not None}
    return subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True)


class Loading(unittest.TestCase):
    def test_import_does_not_load_pytorch(self):
        done = run_python("import natgrad, sys; natgrad.options(); assert 'torch' not in sys.modules")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_natgrad_library_is_the_only_candidate(self):
        done = run_python("import natgrad; natgrad.options()", NATGRAD_LIBRARY="/nowhere/libnatgrad.so.0")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/nowhere/libnatgrad.so.0 (NATGRAD_LIBRARY)", done.stderr)
        self.assertNotIn("the system", done.stderr)  # no other library was tried

    def test_error_names_wrong_library(self):
        done = run_python("import natgrad; natgrad.options()", NATGRAD_LIBRARY="libm.so.6")
        self.assertIn("ImportError: natgrad: libm.so.6 (NATGRAD_LIBRARY) is not libnatgrad", done.stderr)
        done = run_python("import natgrad._abi as abi; abi.CALLS += '; int32_t ng_new(void)'; import natgrad; natgrad.options()")
        self.assertRegex(done.stderr, "ImportError: natgrad: .* is older than this package: .*ng_new")

    def test_openblas_variables_are_set_while_loading(self):
        text = ("import os; from natgrad import _library\n"
                "with _library._openblas_environment(): print(os.environ['OPENBLAS_THREAD_TIMEOUT'])\n"
                "print(os.environ.get('OPENBLAS_THREAD_TIMEOUT'))")
        self.assertEqual(run_python(text, OPENBLAS_THREAD_TIMEOUT=None).stdout.split(), ["18", "None"])
        self.assertEqual(run_python(text, OPENBLAS_THREAD_TIMEOUT="20").stdout.split(), ["20", "20"])

    def test_avx512_kernels_are_selected(self):
        text = ("import natgrad, os; print(natgrad.build_info().get('kernel'), natgrad.build_info()['blas'],"
                "os.environ.get('OPENBLAS_CORETYPE'))")
        alone = run_python(text, OPENBLAS_CORETYPE=None).stdout.split()
        self.assertEqual(alone[-1], "None")
        blas = natgrad.build_info()["blas"]
        if _library._has_avx512() and "OpenBLAS" in blas and "DYNAMIC_ARCH" in blas:
            self.assertEqual(alone[0], "SkylakeX")
            self.assertEqual(run_python(text, OPENBLAS_CORETYPE="Haswell").stdout.split()[0], "Haswell")


class Core(unittest.TestCase):
    def make_one_layer_model(self, **chosen):
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

    def test_tables_list_methods_and_options(self):
        self.assertIn("eva", [row["name"] for row in natgrad.methods()])
        damping = [row for row in natgrad.options() if row["name"] == "damping"][0]
        self.assertGreater(float(damping["standard"]), 0)
        self.assertIn("factor_decay", [row["name"] for row in natgrad.published("kaisa")])

    def test_migrating_page_has_the_arguments_of_published_programs(self):
        root = pathlib.Path(__file__).parents[2]
        table = runpy.run_path(str(root / "scripts/migrating.py"))["make_table"]()
        self.assertGreater(table.count("\n"), 50)
        self.assertIn(table, (root / "docs/migrating.md").read_text())

    def test_errors_name_option_and_function(self):
        with self.assertRaisesRegex(natgrad.ArgumentError, "did you mean 'damping'"):
            _core.Options().set("dampin", 1)
        with self.assertRaisesRegex(ValueError, "damping"):
            _core.Options().set("damping", -1.0)
        with self.assertRaisesRegex(natgrad.Error, "ng_ready"):
            self.make_one_layer_model().call("ready")

    def test_state_restores_bytes(self):
        first, second = self.make_one_layer_model(), self.make_one_layer_model()
        other = self.make_one_layer_model(damping=0.5, method="eva")
        state = first.save()
        second.load(state)
        self.assertEqual(second.save(), state)
        with self.assertRaises(natgrad.Error):
            other.load(state)
        with self.assertRaises(natgrad.Error):
            second.load(state[:-1])

    def test_option_text_of_python_values(self):
        for value, text in ((True, "true"), (0.1, "0.1"), (3, "3"), (["a", "b"], "a|b"), (None, "none"), ("x", "x")):
            self.assertEqual(_core.option_text("name", value), text.encode())


if __name__ == "__main__":
    unittest.main()
