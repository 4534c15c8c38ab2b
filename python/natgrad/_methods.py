"""The classes of natgrad, one row each: class, family, default method, help."""

CLASSES = (
    ("KFAC", "kronecker", "natgrad", "Kronecker-factored curvature: natgrad, kaisa, mpd-kfac, dp-kfac, eva-kfac, sam"),
    ("SPNGD", "kronecker", "spngd", "Kronecker-factored curvature with the settings of SP-NGD"),
    ("Eva", "rankone", "eva-natgrad", "Rank-one curvature: eva-natgrad, eva, eva-f, adasgd"),
    ("MFAC", "window", "mfac", "Window of the last gradients of all parameters: mfac, efcp, lowrank-mfac, topk-*"),
    ("GGT", "window", "ggt", "Window of the last gradients with the settings of GGT"),
)
