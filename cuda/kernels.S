/* kernels.S: the compiled kernels, as data. */
    .section .rodata
    .balign 64
    .global dv_kernels
    .hidden dv_kernels
dv_kernels:
    .incbin "kernels.fatbin"
    .section .note.GNU-stack,"",@progbits
