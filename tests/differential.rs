//! Damaged headers, read by us and by the reference implementation: `strict` opens nothing that the reference refuses,
//! and what the reference opens we open too, except for what is refused intentionally.

mod common;

use proptest::prelude::*;
use safealign::error::{Reason, Result};
use safealign::header::{Header, Survey, read_prefix};

fn survey(file: &[u8]) -> Result<Survey> {
    let json_len = read_prefix(&file[..file.len().min(8)], file.len() as u64)?;
    let header = Header::parse(&file[8..][..json_len as usize])?;
    header.require_known_dtypes()?;
    header.survey(file.len() as u64 - header.data_start())
}

/// Valid files, and files with one error.
fn seeds() -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(common::cases()).expect("the cases");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let small = |path: &std::path::PathBuf| {
        path.extension().is_some_and(|extension| extension == "safetensors")
            && path.metadata().is_ok_and(|found| found.len() < 2000)
    };
    let mut seeds: Vec<Vec<u8>> =
        paths.iter().filter(|path| small(path)).map(|path| std::fs::read(path).expect("reads")).collect();
    seeds.push(common::packed(&common::hostile()));
    seeds
}

#[derive(Debug, Clone)]
enum Damage {
    Replace(usize, u8),
    Insert(usize, u8),
    Delete(usize),
    /// Copies a piece of the header to another place.
    Repeat(usize, usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let byte = prop_oneof![
        8 => prop::sample::select(b"{}[]:,\"0123456789-.eE \n\t\\u0FIUB/anul_".to_vec()),
        1 => any::<u8>(),
    ];
    let at = 0usize..4000;
    prop_oneof![
        (at.clone(), byte.clone()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
        (at.clone(), byte).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        at.clone().prop_map(Damage::Delete),
        (at.clone(), 0usize..80, at).prop_map(|(from, len, to)| Damage::Repeat(from, len, to)),
    ]
}

/// Damages the JSON and corrects the length field.
fn damaged(file: &[u8], damages: &[Damage]) -> Vec<u8> {
    let len = file.first_chunk().map_or(0, |prefix| u64::from_le_bytes(*prefix)) as usize;
    let Some((json, data)) = file.get(8..).and_then(|rest| rest.split_at_checked(len)) else { return file.to_vec() };
    let mut json = json.to_vec();
    for damage in damages {
        let len = json.len().max(1);
        match *damage {
            Damage::Replace(at, byte) if at % len < json.len() => json[at % len] = byte,
            Damage::Insert(at, byte) => json.insert(at % len, byte),
            Damage::Delete(at) if at % len < json.len() => drop(json.remove(at % len)),
            Damage::Repeat(from, count, to) => {
                let from = from % len;
                let piece = json[from.min(json.len())..(from + count).min(json.len())].to_vec();
                json.splice(to % len..to % len, piece);
            }
            _ => {}
        }
    }
    common::framed(&json, data)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]
    #[test]
    fn we_and_the_reference_agree(
        seed in prop::sample::select(seeds()),
        damages in prop::collection::vec(damage(), 0..4),
    ) {
        let file = damaged(&seed, &damages);
        let reference = safetensors::SafeTensors::deserialize(&file);
        match survey(&file) {
            Ok(survey) => {
                let strict = survey.nonconforming.is_none();
                prop_assert_eq!(strict, reference.is_ok(), "{:?} {:?}", survey.nonconforming, reference.err());
            }
            Err(error) if reference.is_ok() => {
                // Intentionally: a duplicate key, a NUL in a name, a tensor info in array form.
                let reasons = [Reason::DuplicateKey, Reason::BadName, Reason::BadTensorInfo];
                prop_assert!(error.reason().is_some_and(|reason| reasons.contains(&reason)), "{}", error);
            }
            Err(_) => {}
        }
    }
}

/// The time depends only on the length of the header. With a linear search for each field or dtype, this would run for
/// minutes.
#[test]
fn many_unknown_fields_and_dtypes_take_linear_time() {
    let fields: String = (0..200_000).map(|number| format!("\"u{number}\":{number},")).collect();
    let json = format!("{{\"w\":{{{fields}\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}}}");
    assert!(survey(&common::framed(json.as_bytes(), &[0; 4])).is_ok());

    let tensor = |number: u32| format!("\"t{number}\":{{\"dtype\":\"Q{number}\",\"shape\":[],\"data_offsets\":[0,0]}}");
    let json = format!("{{{}}}", (0..200_000).map(tensor).collect::<Vec<_>>().join(","));
    let header = Header::parse(json.as_bytes()).expect("parses");
    assert!((0..header.len()).all(|index| header.unknown_dtype(index).is_some_and(|dtype| dtype.starts_with('Q'))));
}

/// The name of an unknown dtype stays with its tensor when the tensors are sorted by offset.
#[test]
fn an_unknown_dtype_stays_with_its_tensor() {
    let json =
        br#"{"b":{"dtype":"Q2","shape":[],"data_offsets":[4,8]},"a":{"dtype":"Q1","shape":[],"data_offsets":[0,4]}}"#;
    let header = Header::parse(json).expect("parses");
    let found: Vec<_> = (0..2).map(|at| (header.get(at).map(|tensor| tensor.name), header.unknown_dtype(at))).collect();
    assert_eq!(found, [(Some("a"), Some("Q1")), (Some("b"), Some("Q2"))]);
}
