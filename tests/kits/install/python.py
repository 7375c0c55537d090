"""Python libraries of others in folders of their own, fetched by pip on first use: those that
cannot live in one environment with what is installed.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.kits.install.cache import NotInstalled, made_once

INSTALL_SECONDS_MAX = 900


def install(name: str, *libraries: str) -> Path:
    """The folder, for the front of PYTHONPATH; libraries as `redis==5.3.1`, and them alone."""
    made_of = "\n".join((sys.version, *libraries))  # some are compiled for one version of Python
    return made_once(name, made_of, partial(_install, libraries))


def _install(libraries: tuple[str, ...], folder: Path) -> None:
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
    try:
        subprocess.run(
            (*command, f"--target={folder}", *libraries),
            check=True,
            capture_output=True,
            timeout=INSTALL_SECONDS_MAX,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"pip could not install {', '.join(libraries)}: {error}") from None
