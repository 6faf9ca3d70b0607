"""Speed, measured.

    python -m retina_dist.benchmark step      this training step against torchvision's plain loop
    python -m retina_dist.benchmark data      reading, decoding and resizing, by part
    python -m retina_dist.benchmark scaling   N processes against one, under each installed launcher

Each takes KEY=VALUE settings (--cfg job lists them). output=FILE writes the figures as JSON.
"""

import importlib
import sys

KINDS = ("step", "data", "scaling")


def main() -> None:
    """Run the benchmark that the first argument names."""
    kind = "".join(sys.argv[1:2])
    usage = (__doc__ or "").strip()
    if kind in KINDS:
        del sys.argv[1]
        importlib.import_module(f"retina_dist.benchmark.{kind}").main()
    elif kind in ("-h", "--help"):
        print(usage)
    else:
        if kind:
            print(
                f"error: there is no benchmark {kind}; write step, data or scaling first.",
                file=sys.stderr,
            )
        print(usage, file=sys.stderr)
        raise SystemExit(2)


if __name__ == "__main__":
    main()
