//! The C header matches the Rust types: every size, offset and enum value, and every exported function.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSymbol};
use safealign::capi::*;

/// The size of a field.
const fn size_of_field<T, F>(_: fn(&T) -> &F) -> i64 {
    size_of::<F>() as i64
}

/// The size of each struct, and the offset and the size of each of its fields, as Rust has them.
macro_rules! structs {
    ($($name:ident { $($field:ident),* $(,)? })*) => {
        BTreeMap::from([$(
            (format!("sizeof({})", stringify!($name)), size_of::<$name>() as i64),
            $((format!("offsetof({}, {})", stringify!($name), stringify!($field)), offset_of!($name, $field) as i64),)*
            $((
                format!("sizeof((({}*)0)->{})", stringify!($name), stringify!($field)),
                size_of_field(|value: &$name| &value.$field),
            ),)*
        )*])
    };
}

/// The value of each constant, as Rust has it.
macro_rules! constants {
    ($($enumeration:ident { $($constant:ident),* $(,)? })*) => {
        BTreeMap::from([$($((stringify!($constant).to_owned(), $enumeration::$constant as i64),)*)*])
    };
}

fn rust_structs() -> BTreeMap<String, i64> {
    structs! {
        sa_error { status, os_error, message }
        sa_tensor { name, name_len, dtype, reserved_0, rank, shape, data, nbytes, reserved }
        sa_metadata { key, key_len, value, value_len }
        sa_write_options { struct_size, alignment, layout, durability, progress, progress_context }
        sa_write_report { struct_size, file_size, data_start, gap_bytes, tensors, tensors_moved }
        sa_plan_options { struct_size, alignment, layout, reserved }
        sa_placement { struct_size, input_index, offset, nbytes, gap_before }
        sa_open_options { struct_size, map_mode, unaligned, strict, read_ahead, aligned_cache }
        sa_stats {
            struct_size, file_size, tensors, misaligned_tensors, misaligned_bytes, tensors_mapped, bytes_mapped,
            tensors_copied, bytes_copied, gaps, gap_bytes, trailing_bytes, header_padding, is_mapped,
        }
        sa_tensor_info { struct_size, name, name_len, dtype, is_misaligned, rank, shape, offset, nbytes }
        sa_view { struct_size, data, nbytes, dtype, origin, rank, shape, owner }
        sa_scan_options { struct_size, alignment }
        sa_scan_report {
            struct_size, file_size, header_len, data_start, tensors, tensor_bytes, misaligned_tensors, misaligned_bytes,
            tensors_below_alignment, gaps, gap_bytes, trailing_bytes, unknown_dtype_tensors, dtypes, header_padding,
            conforms, nonconforming, nonconforming_reason,
        }
        sa_scan_dtype {
            struct_size, name, name_len, tensors, bytes, misaligned_tensors, misaligned_bytes, dtype, reserved,
        }
        sa_repair_options {
            struct_size, alignment, layout, durability, skip_verify, drop_trailing, force, dry_run, progress,
            progress_context,
        }
        sa_repair_report {
            struct_size, action, reserved, tensors, tensors_moved, misaligned_tensors, misaligned_bytes, source_size,
            source_gap_bytes, source_trailing_bytes, file_size, data_start, gap_bytes, bytes_verified,
        }
        sa_aligned_cache_options { struct_size, alignment, layout, durability, progress, progress_context }
        sa_aligned_cache_report { struct_size, file_size, tensors, tensor_bytes, is_new, reserved }
        sa_overlay_options {
            struct_size, alignment, layout, durability, skip_verify, drop_trailing, progress, progress_context, warning,
            warning_context,
        }
        sa_sharded_options {
            struct_size, alignment, layout, durability, replace, reserved, progress, progress_context,
        }
        sa_sharded_report {
            struct_size, shards, tensors, tensor_bytes, file_bytes, gap_bytes, tensors_moved, removed,
        }
        sa_overlay_report { struct_size, written, bytes_written, kept, bytes_kept, linked, removed, warnings }
    }
}

fn rust_constants() -> BTreeMap<String, i64> {
    constants! {
        sa_status {
            SA_OK, SA_ERR_INVALID_ARGUMENT, SA_ERR_IO, SA_ERR_NO_SPACE, SA_ERR_NOT_FOUND, SA_ERR_FORMAT,
            SA_ERR_TRUNCATED, SA_ERR_TOO_LARGE, SA_ERR_UNSUPPORTED, SA_ERR_UNALIGNED, SA_ERR_NONCONFORMING,
            SA_ERR_REFUSED, SA_ERR_CHANGED, SA_ERR_CANCELLED, SA_ERR_INTERNAL,
        }
        sa_dtype {
            SA_DTYPE_BOOL, SA_DTYPE_U8, SA_DTYPE_I8, SA_DTYPE_F8_E5M2, SA_DTYPE_F8_E4M3, SA_DTYPE_F8_E8M0,
            SA_DTYPE_F8_E4M3FNUZ, SA_DTYPE_F8_E5M2FNUZ, SA_DTYPE_I16, SA_DTYPE_U16, SA_DTYPE_F16, SA_DTYPE_BF16,
            SA_DTYPE_I32, SA_DTYPE_U32, SA_DTYPE_F32, SA_DTYPE_I64, SA_DTYPE_U64, SA_DTYPE_F64, SA_DTYPE_C64,
            SA_DTYPE_F4, SA_DTYPE_F6_E2M3, SA_DTYPE_F6_E3M2,
        }
        sa_layout { SA_LAYOUT_COMPACT, SA_LAYOUT_PADDED }
        sa_durability { SA_DURABLE, SA_NOT_DURABLE }
        sa_map_mode { SA_MAP_SHARED, SA_MAP_COPY_ON_WRITE }
        sa_unaligned { SA_UNALIGNED_COPY, SA_UNALIGNED_ERROR, SA_UNALIGNED_BORROW }
        sa_read_ahead { SA_READ_AHEAD_NONE, SA_READ_AHEAD_POPULATE, SA_READ_AHEAD_BACKGROUND }
        sa_header_padding {
            SA_HEADER_PADDING_NONE, SA_HEADER_PADDING_SPACES, SA_HEADER_PADDING_WHITESPACE, SA_HEADER_PADDING_NUL,
        }
        sa_origin { SA_ORIGIN_MAPPED, SA_ORIGIN_COPIED, SA_ORIGIN_CACHED }
        sa_advice { SA_ADVICE_WILL_NEED, SA_ADVICE_DO_NOT_NEED, SA_ADVICE_RANDOM, SA_ADVICE_SEQUENTIAL }
        sa_repair_action { SA_REPAIR_UNTOUCHED, SA_REPAIR_COPIED, SA_REPAIR_REWRITTEN }
    }
}

fn header() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("include/safealign.h")).expect("the header")
}

/// The header without its comments.
fn code() -> String {
    let mut out = String::new();
    let header = header();
    let mut rest = &header[..];
    while let Some((code, comment)) = rest.split_once("/*") {
        out.push_str(code);
        rest = comment.split_once("*/").expect("comments end").1;
    }
    out + rest
}

/// The structs of the header and their fields, in the form of [`rust_structs`].
fn header_structs(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for part in code.split("typedef struct ").skip(1) {
        let Some((name, body)) = part.split_once(" {").filter(|(name, _)| !name.contains(';')) else { continue };
        found.insert(format!("sizeof({name})"));
        for line in body.split_once('}').expect("structs end").0.lines().map(str::trim).filter(|line| !line.is_empty())
        {
            let field =
                line.trim_end_matches(';').split('[').next().and_then(|line| line.split([' ', '*']).next_back());
            let field = field.expect("a field");
            found.insert(format!("offsetof({name}, {field})"));
            found.insert(format!("sizeof((({name}*)0)->{field})"));
        }
    }
    found
}

/// Runs a C program that prints each of the expressions, compiled with the strictest options.
fn measured_in_c(expressions: impl Iterator<Item = String>) -> BTreeMap<String, i64> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("abi");
    fs::create_dir_all(&directory).expect("a directory");
    let mut program = "#include \"safealign.h\"\n#include <stdio.h>\nint main(void) {\n".to_owned();
    for expression in expressions {
        writeln!(program, "    printf(\"%s=%lld\\n\", \"{expression}\", (long long)({expression}));").expect("writes");
    }
    program.push_str("    return 0;\n}\n");
    let (source, output) = (directory.join("abi.c"), directory.join("abi"));
    fs::write(&source, program).expect("writes");
    let compiler = cc::Build::new()
        .target(&host())
        .host(&host())
        .opt_level(0)
        .out_dir(&directory)
        .include(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .flag("-std=c99")
        .flag("-Wall")
        .flag("-Wextra")
        .flag("-pedantic-errors")
        .flag("-Werror")
        .cargo_metadata(false)
        .get_compiler();
    let compiled = compiler.to_command().arg(&source).arg("-o").arg(&output).output().expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(&output).output().expect("runs");
    let text = String::from_utf8(ran.stdout).expect("UTF-8");
    let pair =
        |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.parse().expect("a number")));
    text.lines().filter_map(pair).collect()
}

/// The target triple of this test.
fn host() -> String {
    let rustc = Command::new("rustc").arg("-vV").output().expect("rustc");
    let text = String::from_utf8(rustc.stdout).expect("UTF-8");
    text.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host").to_owned()
}

#[test]
fn every_size_offset_and_value_is_the_same_in_c() {
    let mut expected = rust_structs();
    expected.extend(rust_constants());
    let found = measured_in_c(expected.keys().cloned());
    assert_eq!(found, expected);
    assert_eq!(expected["sizeof(sa_error)"], 512);
}

/// A new field always changes the size of its struct.
#[test]
fn no_struct_has_implicit_padding() {
    let measured = rust_structs();
    let sizes =
        measured.iter().filter_map(|(what, size)| Some((what.strip_prefix("sizeof(sa_")?.strip_suffix(')')?, size)));
    for (name, &size) in sizes {
        let fields = format!("sizeof(((sa_{name}*)0)->");
        let sum: i64 = measured.iter().filter(|(what, _)| what.starts_with(&fields)).map(|(_, size)| size).sum();
        assert_eq!(sum, size, "sa_{name}");
        assert_eq!(size % 8, 0, "sa_{name}");
    }
}

#[test]
fn the_comparison_covers_the_whole_header() {
    let code = code();
    assert_eq!(header_structs(&code), rust_structs().into_keys().collect());
    let assigned = code.lines().filter_map(|line| line.trim().strip_suffix(',')?.split_once(" = "));
    let constants: BTreeMap<String, i64> =
        assigned.map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).collect();
    assert_eq!(constants, rust_constants());
}

#[test]
fn exactly_the_functions_of_the_header_are_exported() {
    let declared: BTreeSet<String> = code()
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '(')
        .filter_map(|word| word.split_once('('))
        .filter(|(name, _)| name.starts_with("sa_") && !name.ends_with("__"))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert!(declared.len() >= 50, "{declared:?}");
    let directory = std::env::current_exe().expect("this program").parent().expect("a directory").to_owned();
    let library = directory.join(format!("{}safealign{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX));
    let bytes = fs::read(&library).expect("the shared library, built beside the tests");
    let file = object::File::parse(&*bytes).expect("an object file");
    let exported: BTreeSet<String> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .map(|symbol| symbol.name().expect("a name").to_owned())
        .collect();
    assert_eq!(exported, declared);
}
