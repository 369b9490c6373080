//! Names the shared library, so that programs find it wherever it is installed.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let major = env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    let os = env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if os == "macos" {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libsafealign.{major}.dylib");
    } else if env::var("CARGO_CFG_TARGET_FAMILY").unwrap_or_default() == "unix" {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsafealign.so.{major}");
    }
}
