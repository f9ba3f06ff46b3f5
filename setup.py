"""What pyproject.toml cannot say: a build begins empty, else a module deleted since comes back in the wheel."""

import shutil

from setuptools import setup
from setuptools.command.build import build


class EmptyBuild(build):
    """`build`, without what an earlier one left in `build/lib`."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build": EmptyBuild})
