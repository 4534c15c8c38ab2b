"""Load cuBLAS and cuSOLVER of the packages that PyTorch brings, so that the library natgrad_cuda finds them by name."""
import ctypes
import glob
import importlib.util
import os

# In the order of their dependencies.
NAMES = ("libnvJitLink.so.*", "libcublasLt.so.*", "libcublas.so.*", "libcusparse.so.*", "libcusolver.so.*")


def folders():
    """The folders of the package `nvidia`, whose parts are installed apart."""
    found = importlib.util.find_spec("nvidia")
    return list(found.submodule_search_locations or ()) if found is not None else []


def load():
    """Load each library that is there. If one is missing or does not load, natgrad_cuda names it later."""
    for name in NAMES:
        for path in sorted(path for folder in folders() for path in glob.glob(os.path.join(folder, "*", "lib", name))):
            try:
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
