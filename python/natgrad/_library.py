"""Load libnatgrad, once per process: the file that NATGRAD_LIBRARY names; else natgrad/lib of this package
(`pip install .` installs it with a private BLAS); else the system's libnatgrad.so.0.
"""
import contextlib
import ctypes
import os
import platform
import threading

from . import _abi

_PACKAGED_LIBRARIES = os.path.join(os.path.dirname(__file__), "lib")
_lock = threading.Lock()
_loaded = None


def _has_avx512():
    """Return True if this processor can run OpenBLAS's SkylakeX kernels (AVX-512)."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("flags"):
                return {"avx512f", "avx512dq", "avx512bw", "avx512cd", "avx512vl"} <= set(line.split())
    return False


@contextlib.contextmanager
def _openblas_environment():
    """While OpenBLAS loads, set the variables that OpenBLAS reads.  OPENBLAS_CORETYPE selects AVX-512 kernels, because
    OpenBLAS uses AVX2 on unknown processors.  OPENBLAS_THREAD_TIMEOUT lets idle threads stop spinning after 2^18, not
    2^26 cycles, so that PyTorch can use their cores.  Variables that the user has set are not changed."""
    wanted = {"OPENBLAS_THREAD_TIMEOUT": "18", **({"OPENBLAS_CORETYPE": "SkylakeX"} if _has_avx512() else {})}
    ours = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


def _candidate_files():
    """Yield the files to try, with the origin of each file name."""
    given = os.environ.get("NATGRAD_LIBRARY")
    if given:
        yield given, "NATGRAD_LIBRARY"
        return  # no other file is tried
    own = os.path.join(_PACKAGED_LIBRARIES, "libnatgrad.so.0")
    if os.path.exists(own):
        yield own, "the package"
    yield "libnatgrad.so.0", "the system"


def load_library():
    """Return the library with its functions declared.  If no file can be loaded, ImportError lists the files."""
    global _loaded
    with _lock:
        if _loaded is None:
            tried = []
            for file, origin in _candidate_files():
                try:
                    with _openblas_environment():
                        library = ctypes.CDLL(file)
                except OSError as error:
                    tried.append(f"{file} ({origin}): {error}")
                    continue
                try:
                    library.ng_version.restype = ctypes.c_int32
                except AttributeError:
                    raise ImportError(f"natgrad: {file} ({origin}) is not libnatgrad") from None
                if library.ng_version() // 100 != _abi.VERSION // 100:  # before 1.0, minor versions are incompatible
                    raise ImportError(f"natgrad: {file} ({origin}) is version {library.ng_version()}, this package "
                                      f"is for {_abi.VERSION}")
                try:
                    _abi.declare_functions(library)
                except AttributeError as error:
                    raise ImportError(f"natgrad: {file} ({origin}) is older than this package: {error}") from None
                _loaded = library
                break
            else:
                raise ImportError("natgrad: no libnatgrad was found; pip install it from the source tree, or set "
                                  "NATGRAD_LIBRARY to its file.  Tried " + "; ".join(tried))
        return _loaded
