"""natgrad/_abi.py equals natgrad.h: the C compiler checks every struct, field, number and function."""
import ctypes
import os
import re
import subprocess
import tempfile
import unittest

from natgrad import _abi

SOURCE = os.environ.get("NG_TEST_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))


def c_program_of_claims():
    """C that compiles only if header and package agree."""
    lines = ["#define NG_EXPERIMENTAL", "#include <natgrad.h>"]
    same = "_Static_assert({0}, {1});"

    def add_assertion(what):
        lines.append(same.format(what, '"' + what.replace('"', "'") + '"'))

    for name, value in _abi.NUMBERS.items():
        add_assertion(f"{name} == {value}")
    for name, fields in _abi.parse_structs():
        struct = getattr(_abi, name)
        grows = fields[0] == "size_t struct_size"  # a later header may append fields
        add_assertion(f"sizeof({name}) {'>=' if grows else '=='} {ctypes.sizeof(struct)}")
        for text in fields:
            field, _ = _abi._name_and_type(text)
            at = getattr(struct, field)
            add_assertion(f"offsetof({name}, {field}) == {at.offset}")
            add_assertion(f"sizeof((({name} *)0)->{field}) == {at.size}")
            kind = re.sub(rf"\b{field}\b", "", text, count=1)
            add_assertion(f"__builtin_types_compatible_p(__typeof__((({name} *)0)->{field}), {kind})")
        if grows and name != "ng_layer":
            lines.append(f"void {name}_init({name} *, size_t);")
    lines.append("void ng_layer_init(ng_layer *, ng_kind, size_t);")
    for name, result, arguments in _abi.parse_calls():
        lines.append(f"{result.strip()} {name}({', '.join(arguments) or 'void'});")
    add_assertion(f"NG_VERSION == {_abi.VERSION}")
    return "\n".join(lines) + "\nint main(void) { return 0; }\n"


def compile_program(text):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "abi.c")
        with open(file, "w", encoding="ascii") as out:
            out.write(text)
        done = subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", "-fsyntax-only", "-I",
                               os.path.join(SOURCE, "include"), file], capture_output=True, text=True)
        return done.returncode == 0, done.stderr


class AbiMatchesHeader(unittest.TestCase):
    def test_package_and_header_agree(self):
        good, why = compile_program(c_program_of_claims())
        self.assertTrue(good, why[:2000])

    def test_each_kind_of_difference_is_found(self):
        """The check finds each kind of mistake in _abi.py."""
        text = c_program_of_claims()
        for right, wrong in ((f"NG_VERSION == {_abi.VERSION}", f"NG_VERSION == {_abi.VERSION + 1}"),
                             ("NG_ONE_STEP == 2", "NG_ONE_STEP == 3"),
                             ("ng_step(ng_precond *p, double lr)", "ng_step(ng_precond *p, float lr)"),
                             ("int32_t ng_wants(", "int64_t ng_wants("),
                             ("sizeof(ng_binding) == 32", "sizeof(ng_binding) == 40"),
                             ("offsetof(ng_report, clip) == 24", "offsetof(ng_report, clip) == 16"),
                             ("void ng_batch_init(ng_batch *, size_t)", "void ng_batch_init(ng_batch *)"),
                             ("->samples), int64_t ", "->samples), int32_t ")):
            self.assertTrue(right in text, right)
            good, _ = compile_program(text.replace(right, wrong))
            self.assertFalse(good, f"{wrong} was not noticed")


if __name__ == "__main__":
    unittest.main()
