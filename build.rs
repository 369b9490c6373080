//! Names the shared library, so that programs find it wherever it is installed.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let var = |name| env::var(name).unwrap_or_default();
    let (major, minor) = (var("CARGO_PKG_VERSION_MAJOR"), var("CARGO_PKG_VERSION_MINOR"));
    // Before version 1 a new minor version may change the ABI. CMakeLists.txt follows the same rule.
    let abi = if major == "0" { format!("{major}.{minor}") } else { major };
    if var("CARGO_CFG_TARGET_VENDOR") == "apple" {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libsafealign.{abi}.dylib");
    } else if var("CARGO_CFG_TARGET_FAMILY") == "unix" {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsafealign.so.{abi}");
    }
}
