"""The classes of natgrad, one row each: a method of the library is used by the class of its family."""

#        class  family       method unless one is named
CLASSES = (
    ("KFAC", "kronecker", "natgrad", "Kronecker-factored curvature: natgrad, kaisa, mpd-kfac, dp-kfac, eva-kfac, sam"),
    ("SPNGD", "kronecker", "spngd", "The same family by the settings of SP-NGD"),
    ("Eva", "rankone", "eva-natgrad", "Rank-one curvature: eva-natgrad, eva, eva-f, adasgd"),
    ("MFAC", "window", "mfac", "The last gradients of all parameters: mfac and what has its store"),
    ("GGT", "window", "ggt", "The same family by the settings of GGT"),
)
