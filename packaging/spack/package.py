"""A recipe for Spack 0.23 and newer: copy it as `packages/trihop/package.py` into a repository of
packages (`spack repo create`), set `git` to where you have the sources, and say
`spack install trihop`."""

from spack.package import *


# Of the class that all releases of Spack know: since 1.0, those for make and the like are elsewhere.
class Trihop(Package):
    """Many-to-many messaging for HPC jobs: shared-memory rings inside a node, libfabric between nodes."""

    homepage = "https://docs.rs/trihop"
    git = "file:///path/to/trihop"

    license("BSD-3-Clause OR MIT")

    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("gmake", type="build")
    depends_on("rust@1.88:", type="build")
    depends_on("pkgconfig", type="build")
    # bindgen reads libfabric's headers with libclang.
    depends_on("llvm+clang", type="build")
    depends_on("libfabric@1.17:", type=("build", "link", "run"))

    sanity_check_is_file = [
        join_path("bin", "trihop"),
        join_path("include", "trihop.h"),
        join_path("lib", "libtrihop.so"),
        join_path("lib", "pkgconfig", "trihop.pc"),
    ]

    def setup_build_environment(self, env):
        env.set("LIBCLANG_PATH", self.spec["llvm"].prefix.lib)
        # What crates are fetched to stays in the stage.
        env.set("CARGO_HOME", join_path(self.stage.path, "cargo"))

    def install(self, spec, prefix):
        make("install", f"PREFIX={prefix}", f"LIBDIR={prefix.lib}")

    def setup_run_environment(self, env):
        # libfabric is opened when a job first needs it, not linked.
        env.prepend_path("LD_LIBRARY_PATH", self.spec["libfabric"].prefix.lib)
