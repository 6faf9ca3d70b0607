"""What setup.cfg asks for, a requirement a line: of the package, and of the extras named by the
argument (`horovod,azure`).
"""

import configparser
import sys
from pathlib import Path

if __name__ == "__main__":
    beside = Path(__file__).with_name("setup.cfg")  # in the image; in a checkout it lies above
    config = configparser.ConfigParser()
    config.read(beside if beside.exists() else Path(__file__).parents[2] / "setup.cfg")
    names = [name for name in sys.argv[1].split(",") if name]
    print(
        config["options"]["install_requires"],
        *(config["options.extras_require"][name] for name in names),
    )
