"""Models on CUDA, without a GPU: the library natgrad_cuda with the stand-in (tests/standin_desk.c), and CPU tensors that the front
takes for tensors on cuda:0."""
import ctypes
import os
import shutil
import tempfile
import unittest
from unittest import mock

import torch

import natgrad
from front import Case, loss_of, make_preconditioner, random_batch, small_conv_net
from natgrad import _abi, _core, _cuda_libraries, _tensors

BUILD = os.environ.get("NG_TEST_BUILD_DIR")
STANDIN = os.path.join(BUILD or "", "libnatgrad_standin.so")


def setUpModule():
    if BUILD is None:
        raise unittest.SkipTest("NG_TEST_BUILD_DIR is not set: no build with the stand-in")


class FakeAllocator:
    """Stands for PyTorch's caching allocator: blocks of memory of the host, by address; all calls."""

    def __init__(self):
        self.blocks, self.sizes, self.most = {}, [], 2**40

    def alloc(self, size):
        if size > self.most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory") if hasattr(torch.cuda, "OutOfMemoryError") else RuntimeError("memory")
        room = ctypes.create_string_buffer(size + 256)
        address = (ctypes.addressof(room) + 255) // 256 * 256
        self.blocks[address] = room
        self.sizes.append(size)
        return address

    def free(self, address):
        del self.blocks[address]


class OnCuda(Case):
    real_device_memory = staticmethod(_tensors.device_memory)

    def setUp(self):
        self.devices = {}  # of tensors by address; others are on cuda:0
        self.memory, self.asked = FakeAllocator(), []
        for patch in (mock.patch.dict(os.environ, NG_CUDA_LIBRARY=STANDIN, NG_STANDIN_NOW="1"),
                      mock.patch.object(_tensors, "device_of", lambda t: self.devices.get(t.data_ptr(), torch.device("cuda", 0))),
                      mock.patch.object(_tensors, "current_stream", lambda device: 1),
                      mock.patch.object(_tensors, "device_memory",
                                        lambda device: self.asked.append(device) or (self.memory.alloc, self.memory.free))):
            patch.start()
            self.addCleanup(patch.stop)

    def weights_after_steps(self, kind, **options):
        model = small_conv_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with mock.patch.object(_core, "Precond", wraps=_core.Precond) as made:
            k = make_preconditioner(model, kind, **options)
        for seed in range(2):
            optimizer.zero_grad()
            loss_of(model, *random_batch(4, seed)).backward()
            k.step()
            optimizer.step()
        descriptors = [row[3].array.mem for row in k._bound_rows]
        k.close()
        return [p.detach().clone() for p in model.parameters()], made.call_args, descriptors

    def test_steps_equal_the_cpu(self):
        for kind in (natgrad.Eva, natgrad.KFAC, natgrad.MFAC):
            on_device, made, memory = self.weights_after_steps(kind)
            self.assertEqual((made.args[3], made.kwargs["stream"]), ("cuda:0", 1))
            self.assertEqual(set(memory), {_abi.NG_DEVICE})
            with mock.patch.object(_tensors, "device_of", lambda t: t.device):
                on_host, made, memory = self.weights_after_steps(kind)
            self.assertEqual((made.args[3], made.kwargs["stream"]), (None, None))
            self.assertEqual(set(memory), {_abi.NG_HOST})
            for a, b in zip(on_device, on_host):
                self.assertLess((a - b).abs().max().item(), 1e-5)  # sums of f32 in other orders, divided by the damping

    def test_memory_of_the_device_is_of_pytorch(self):
        k = make_preconditioner(small_conv_net(), natgrad.Eva)
        self.assertEqual(self.asked, [torch.device("cuda", 0)])
        self.assertEqual(self.memory.sizes, [64 << 20, 256 << 20])
        self.assertEqual(len(self.memory.blocks), 2)
        k.close()
        self.assertEqual(self.memory.blocks, {})
        for most in (0, 64 << 20):  # the first, the second block fails
            self.memory.most = most
            with self.assertRaisesRegex(natgrad.Error, "linalg = cuda: no memory for .* device_alloc returned NULL") as raised:
                make_preconditioner(small_conv_net(), natgrad.Eva)
            self.assertIsInstance(raised.exception.__cause__, RuntimeError)
            self.assertEqual(self.memory.blocks, {})

    def test_blocks_are_of_the_caching_allocator(self):
        with mock.patch.object(torch.cuda, "caching_allocator_alloc", return_value=4096) as alloc, \
                mock.patch.object(torch.cuda, "caching_allocator_delete") as delete:
            mine = self.real_device_memory(torch.device("cuda", 1))
            self.assertEqual(mine[0](512), 4096)
            alloc.assert_called_once_with(512, torch.device("cuda", 1))
            mine[1](4096)
            delete.assert_called_once_with(4096)

    def test_wrong_devices_are_named(self):
        model = small_conv_net()
        for device, text in ((torch.device("cuda", 1), "'0.weight' is on cuda:1 and '0.bias' on cuda:0"),
                             (torch.device("mps"), "'0.weight' is on mps: only the CPU and CUDA are supported")):
            self.devices = {model[0].weight.data_ptr(): device}
            with self.assertRaisesRegex(natgrad.Error, text):
                make_preconditioner(model)
        self.devices = {}
        with self.assertRaisesRegex(natgrad.Error, "linalg is 'ref' and the model is on cuda:0: expected None or 'cuda:0'"):
            make_preconditioner(model, linalg="ref")

    def test_missing_library_is_named(self):
        with mock.patch.dict(os.environ, NG_CUDA_LIBRARY="/no/such/library.so"):
            with self.assertRaisesRegex(natgrad.Error, "linalg = cuda: the library does not open: /no/such/library.so"):
                make_preconditioner(small_conv_net())


class Libraries(unittest.TestCase):
    def test_libraries_of_packages_are_loaded(self):
        """Stand-ins named like the libraries in two layouts of NVIDIA's packages and in natgrad-cuda; a file that is no library is
        passed over."""
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, "nvidia", *parts) for parts in (("cublas", "lib", "libcublas.so.12"),
                                                                        ("cu13", "lib", "libcusolver.so.12"))]
            paths.append(os.path.join(folder, "natgrad_cuda", "libnatgrad_cuda.so.0"))
            for path in paths:
                os.makedirs(os.path.dirname(path))
                shutil.copy(STANDIN, path)
            with open(os.path.join(folder, "nvidia", "cublas", "lib", "libcublasLt.so.12"), "w", encoding="utf-8") as broken:
                broken.write("no library")
            with mock.patch.object(_cuda_libraries, "folders", lambda package: [os.path.join(folder, package)]):
                _cuda_libraries.load()
            with open("/proc/self/maps", encoding="utf-8") as maps:
                loaded = maps.read()
        for path in paths:
            self.assertIn(path, loaded)


if __name__ == "__main__":
    unittest.main()
