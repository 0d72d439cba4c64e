"""check.py FOLDER: the recipe for Spack beside this file does what it says, as far as can be told
without Spack. It is read with a stand-in for Spack's package API, which has the names that the API
documents and takes no others; what it asks for is compared with the sources, and its `install` is
carried out, into FOLDER. PROFILE=dev takes what tests have built.
"""

import os
import pathlib
import re
import subprocess
import sys
import tomllib
import types

here = pathlib.Path(__file__).resolve().parent
root = here.parent.parent


class Prefix(str):
    """A folder, whose attributes are folders in it."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return Prefix(os.path.join(self, name))


class Environment:
    """What a recipe does to the environment."""

    def __init__(self):
        self.variables = {}
        self.paths = {}

    def set(self, name, value, *, force=False, raw=False):
        self.variables[name] = str(value)

    def prepend_path(self, name, path, separator=":"):
        self.paths.setdefault(name, []).insert(0, str(path))


class Recipe:
    """What directives have said."""

    def __init__(self):
        self.versions, self.dependencies, self.licenses = {}, {}, []

    def version(self, name, *, branch=None, tag=None, commit=None, sha256=None):
        self.versions[name] = branch or tag or commit or sha256

    def depends_on(self, spec, when=None, type=("build", "link"), patches=None):
        kinds = {type} if isinstance(type, str) else set(type)
        assert kinds <= {"build", "link", "run", "test"}, f"{spec}: {type}"
        name, asked = re.fullmatch(r"([a-z0-9-]+)(.*)", spec).groups()
        self.dependencies[name] = (asked, kinds)

    def license(self, name, checked_by=None, when=None):
        self.licenses.append(name)


def read(recipe):
    """The class of the recipe, and its module."""
    api = types.ModuleType("spack.package")
    api.Package = type("Package", (), {})
    api.version, api.depends_on, api.license = recipe.version, recipe.depends_on, recipe.license
    api.join_path = os.path.join
    sys.modules["spack"], sys.modules["spack.package"] = types.ModuleType("spack"), api
    module = types.ModuleType("package")
    exec(compile((here / "package.py").read_text(), here / "package.py", "exec"), module.__dict__)
    return module.Trihop, module


def main(folder):
    recipe = Recipe()
    package, module = read(recipe)
    workspace = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["package"]

    assert issubclass(package, sys.modules["spack.package"].Package)
    assert package.homepage.startswith("https://") and package.git and package.__doc__
    assert recipe.versions == {"main": "main"}, recipe.versions
    assert recipe.licenses == [workspace["license"]], recipe.licenses
    rust, _ = recipe.dependencies["rust"]
    oldest = workspace["rust-version"]
    assert rust == f"@{oldest}:", f"rust{rust}: the sources need {oldest}"
    tools = (root / "tools" / "install.sh").read_text()
    libfabric, kinds = recipe.dependencies["libfabric"]
    needed = re.search(r"'libfabric >= ([0-9.]+)'", tools)[1]
    assert libfabric == f"@{needed}:", f"libfabric{libfabric}: the sources need {needed}"
    assert kinds == {"build", "link", "run"}, kinds
    for name in ["c", "gmake", "pkgconfig", "llvm"]:
        assert "build" in recipe.dependencies[name][1], name

    of = {"llvm": "/opt/llvm", "libfabric": "/opt/libfabric"}
    this = package()
    this.spec = {name: types.SimpleNamespace(prefix=Prefix(path)) for name, path in of.items()}
    this.stage = types.SimpleNamespace(path=os.path.join(folder, "stage"))
    building, running = Environment(), Environment()
    this.setup_build_environment(building)
    this.setup_run_environment(running)
    assert building.variables.pop("CARGO_HOME").startswith(this.stage.path)
    assert building.variables == {"LIBCLANG_PATH": "/opt/llvm/lib"}, building.variables
    assert running.paths == {"LD_LIBRARY_PATH": ["/opt/libfabric/lib"]}, running.paths

    # Spack puts make, which runs as many jobs as there are cores, into the recipe's module. What
    # tests have built is taken as it is: with the machine's libclang, and its crates.
    environment = {**os.environ, "MANIFEST": os.path.join(folder, "manifest")}
    prefix = Prefix(os.path.join(folder, "prefix"))
    module.make = lambda *arguments: subprocess.run(
        ["make", "-j2", "--no-print-directory", *arguments], cwd=root, env=environment, check=True
    )
    this.install(this.spec, prefix)
    for file in package.sanity_check_is_file:
        assert os.path.isfile(os.path.join(prefix, file)), f"{file} was not installed"
    installed = os.path.join(prefix, "bin", "trihop")
    subprocess.run([installed, "run", "-n", "2", "--", "true"], check=True)
    print("spack: the recipe fits the sources, and its install puts all in place")


main(sys.argv[1])
