//! Facts that the README repeats are those of the place they come from.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

/// The code blocks of the README in that language.
fn blocks(language: &str) -> Vec<String> {
    let readme = read("README.md");
    let opening = format!("```{language}\n");
    readme.split(&opening).skip(1).map(|rest| rest.split("```").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_cpp_code_is_the_example_that_ctest_runs() {
    assert_eq!(blocks("cpp"), [read("examples/save_and_load.cpp")]);
}

#[test]
fn the_cmake_code_is_the_project_that_ctest_builds() {
    assert_eq!(blocks("cmake"), [read("cpp-tests/readme/CMakeLists.txt")]);
}

#[test]
fn the_versions_are_those_that_the_tests_use() {
    let (readme, manifest, requirements) = (read("README.md"), read("Cargo.toml"), read("scripts/requirements.txt"));
    let rust = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).expect("an MSRV");
    assert!(readme.contains(&format!("Rust {}", rust.trim_matches('"'))));
    for package in ["mlx", "safetensors"] {
        let pinned = requirements.lines().find_map(|line| line.strip_prefix(&format!("{package}=="))).expect("a pin");
        let named = if package == "mlx" { "MLX" } else { package };
        assert!(readme.contains(&format!("{named} {}", pinned.trim())), "{package} {pinned}");
    }
}
