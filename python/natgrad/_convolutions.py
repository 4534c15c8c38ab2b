"""Layers for convolutions that the library does not have: over three axes, and transposed.

Conv3d is a convolution over the last two axes: its samples are (sample, output position of the first axis), its input channels
(channel, kernel position of the first axis).  A transposed convolution is a linear layer at each input position: from the input
channels to the values (output channel, kernel position) that this position adds to the output.
"""
import torch
from torch import nn
import torch.nn.functional as F

from . import _abi
from ._layers import Layer


class Conv3d(Layer):
    """A convolution over three axes."""

    def __init__(self, name, module, bias):
        super().__init__(name, module, bias)
        self.conv = True
        self._set_padding(module)
        self.first_padding = 0
        if self.pad_arguments is None:
            self.first_padding, *self.padding = self.padding

    def _conv_geometry(self):
        m = self.modules[0]
        return m.in_channels * m.kernel_size[0], m.kernel_size[1:], m.stride[1:], m.dilation[1:]

    def view_of(self, which):
        return None if which == _abi.NG_BIAS else lambda w: w.view(w.shape[0], -1, *w.shape[3:])

    def convert_input(self, x, samples, first):
        m = self.modules[0]
        x = x if x.dim() == 5 else x.unsqueeze(0)
        if self.pad_arguments is not None:
            x = F.pad(x, **self.pad_arguments)
        x = F.pad(x, (0, 0, 0, 0, self.first_padding, self.first_padding))
        size, stride, dilation = m.kernel_size[0], m.stride[0], m.dilation[0]
        self.frames = (x.shape[2] - dilation * (size - 1) - 1) // stride + 1
        taps = [x[:, :, dilation * i:dilation * i + stride * (self.frames - 1) + 1:stride] for i in range(size)]
        return self._as_frames(torch.stack(taps, 2).flatten(1, 2)), x.shape[0] * self.frames

    def convert_output_gradient(self, g, samples, first):
        return self._as_frames(g if g.dim() == 5 else g.unsqueeze(0))

    @staticmethod
    def _as_frames(x):
        """Return x [n, c, d, h, w] as [n d, c, h, w]."""
        return x.transpose(1, 2).flatten(0, 1)


class TransposedConv(Layer):
    """A transposed convolution over one or two axes, without its bias, which is added to the sums of these values."""

    covers_bias = False

    def _linear_shape(self, weight):
        return weight[0].numel(), weight.shape[0]

    def view_of(self, which):
        return lambda w: w.view(w.shape[0], -1).t()

    def _as_rows(self, x, samples):
        """Return x [n, features, positions] as [samples, positions, features], and the number of samples."""
        x, n = x.transpose(1, 2), x.shape[0]
        if samples and n != samples and n % samples == 0:  # consecutive frames of a sample are its positions
            return x.reshape(samples, -1, x.shape[2]), samples
        return x, n

    def convert_input(self, x, samples, first):
        x = x if x.dim() == len(self.modules[0].kernel_size) + 2 else x.unsqueeze(0)
        return self._as_rows(x.flatten(2), samples)

    def convert_output_gradient(self, g, samples, first):
        m, g = self.modules[0], self.as_images(g if g.dim() == len(self.modules[0].kernel_size) + 2 else g.unsqueeze(0))
        one = 2 - len(m.kernel_size)  # ConvTranspose1d: images of height 1
        geometry = [(fill,) * one + tuple(value) for fill, value in ((1, m.kernel_size), (1, m.dilation), (0, m.padding),
                                                                     (1, m.stride))]
        # output_padding >= stride: unfold finds more positions than the input has
        sizes = [(size + 2 * padding - dilation * (kernel - 1) - 1 - (more if more >= stride else 0)) // stride + 1
                 for size, kernel, dilation, padding, stride, more in zip(g.shape[2:], *geometry, (0,) * one + tuple(m.output_padding))]
        found = [(size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
                 for size, kernel, dilation, padding, stride in zip(g.shape[2:], *geometry)]
        patches = F.unfold(g, *geometry).unflatten(2, found)[..., :sizes[0], :sizes[1]]
        return self._as_rows(patches.flatten(2), samples)[0]


KINDS = {nn.Conv3d: Conv3d, nn.ConvTranspose1d: TransposedConv, nn.ConvTranspose2d: TransposedConv}


def find_class(module):
    """Return the class of PyTorch in KINDS that a module derives from, or None."""
    return next((plain for plain in KINDS if isinstance(module, plain)), None)
