"""Load the libraries of GPUs from Python packages, so that natgrad finds them by name: natgrad_cuda of the package natgrad-cuda,
and its needs, cuBLAS and cuSOLVER, of packages that PyTorch brings."""
import ctypes
import glob
import importlib.util
import os

# In the order of their dependencies, without natgrad_cuda, which opens the others at run time.
NAMES = ("libnvJitLink.so.*", "libcublasLt.so.*", "libcublas.so.*", "libcusparse.so.*", "libcusolver.so.*")


def folders(package):
    """The folders of a package; the parts of `nvidia` are installed apart."""
    found = importlib.util.find_spec(package)
    return list(found.submodule_search_locations or ()) if found is not None else []


def load():
    """Load each library that is there. If one is missing or does not load, natgrad names it later."""
    places = [("nvidia", os.path.join("*", "lib", name), ctypes.RTLD_GLOBAL) for name in NAMES]
    for package, name, mode in [*places, ("natgrad_cuda", "libnatgrad_cuda.so.0", ctypes.RTLD_LOCAL)]:
        for path in sorted(path for folder in folders(package) for path in glob.glob(os.path.join(folder, name))):
            try:
                ctypes.CDLL(path, mode=mode)
            except OSError:
                continue
