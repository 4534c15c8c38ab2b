"""The classes of natgrad, one row each: a method of the library is used by the class of its family."""

#        class  family       method unless one is named
CLASSES = (
    ("KFAC", "kronecker", "natgrad", "Kronecker-factored curvature: natgrad, kaisa, mpd-kfac, dp-kfac, eva-kfac, sam"),
    ("Eva", "rankone", "eva-natgrad", "Rank-one curvature: eva-natgrad, eva, eva-f, adasgd"),
)
