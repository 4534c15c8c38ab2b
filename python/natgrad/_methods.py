"""The classes of natgrad: name, default method, help.  A class accepts all methods with the traits of its default."""

CLASSES = (
    ("KFAC", "natgrad", "Kronecker-factored curvature: natgrad, kaisa, mpd-kfac, dp-kfac, eva-kfac, sam"),
    ("EKFAC", "ekfac", "K-FAC with second moments of the gradients of samples in its eigenbases: ekfac"),
    ("SPNGD", "spngd", "Kronecker-factored curvature with the settings of SP-NGD"),
    ("Eva", "eva-natgrad", "Rank-one curvature: eva-natgrad, eva, eva-f, adasgd"),
    ("MFAC", "mfac", "Window of the last gradients of all parameters: mfac, efcp, lowrank-mfac, topk-*"),
    ("GGT", "ggt", "Window of the last gradients with the settings of GGT"),
)
