//! Properties of the layout, for any tensors.

mod common;

use proptest::prelude::*;
use safealign::dtype::Dtype;
use safealign::error::Status;
use safealign::header::Header;
use safealign::layout::{Layout, LayoutOptions, Plan, TensorSpec};

/// A dtype and a shape with a whole number of bytes.
fn dtype_and_shape(largest: u64) -> impl Strategy<Value = (Dtype, Vec<u64>)> {
    let dimension = prop_oneof![4 => 0u64..12, 1 => Just(0), 1 => 1..=largest];
    let shape = prop::collection::vec(dimension, 0..4);
    (0..Dtype::ALL.len(), shape)
        .prop_map(|(number, shape)| (Dtype::ALL[number], shape))
        .prop_filter("whole bytes", |(dtype, shape)| dtype.nbytes(shape).is_ok())
}

fn tensors() -> impl Strategy<Value = Vec<(String, Dtype, Vec<u64>)>> {
    tensors_up_to(5000)
}

fn tensors_up_to(largest: u64) -> impl Strategy<Value = Vec<(String, Dtype, Vec<u64>)>> {
    prop::collection::vec(dtype_and_shape(largest), 0..24).prop_map(|found| {
        let name = |number: usize| format!("layer.{number}.\u{1F40D}\"w");
        found.into_iter().enumerate().map(|(number, (dtype, shape))| (name(number), dtype, shape)).collect()
    })
}

fn specs(tensors: &[(String, Dtype, Vec<u64>)]) -> Vec<TensorSpec<'_>> {
    tensors
        .iter()
        .map(|(name, dtype, shape)| TensorSpec {
            name,
            dtype: *dtype,
            shape,
            nbytes: dtype.nbytes(shape).expect("whole bytes"),
        })
        .collect()
}

/// The largest power of two that divides a size, at most the alignment; the alignment for an empty tensor.
fn guaranteed(nbytes: u64, alignment: u64) -> u64 {
    if nbytes == 0 { alignment } else { alignment.min(1 << nbytes.trailing_zeros()) }
}

proptest! {
    #[test]
    fn compact_has_no_gaps_and_aligns_as_documented(tensors in tensors(), exponent in 3u32..=21) {
        let specs = specs(&tensors);
        let alignment = 1 << exponent;
        let options = LayoutOptions { layout: Layout::Compact, alignment };
        let plan = Plan::new(&specs, &[("k", "v")], &options).expect("plans");
        prop_assert_eq!(plan.data_start() % alignment, 0);
        let mut cursor = plan.data_start();
        for placement in plan.placements() {
            let spec = &specs[placement.input_index];
            prop_assert_eq!((placement.offset, placement.gap_before, placement.nbytes), (cursor, 0, spec.nbytes));
            prop_assert_eq!(placement.offset % guaranteed(spec.nbytes, alignment), 0);
            prop_assert_eq!(placement.offset % spec.dtype.width(), 0);
            cursor += spec.nbytes;
        }
        prop_assert_eq!(plan.file_size(), cursor);
        // Stable: tensors of the same guaranteed alignment keep the caller's order. Empty ones come first.
        let key = |index: usize| {
            let nbytes = specs[index].nbytes;
            (nbytes != 0, std::cmp::Reverse(guaranteed(nbytes, alignment)), index)
        };
        let order: Vec<usize> = plan.placements().iter().map(|placement| placement.input_index).collect();
        prop_assert!(order.is_sorted_by_key(|&index| key(index)), "{:?}", order);
        prop_assert_eq!(order.len(), specs.len());
    }

    #[test]
    fn padded_keeps_the_order_and_aligns_every_tensor(tensors in tensors(), exponent in 3u32..=21) {
        let specs = specs(&tensors);
        let alignment = 1 << exponent;
        let plan = Plan::new(&specs, &[], &LayoutOptions { layout: Layout::Padded, alignment }).expect("plans");
        let mut cursor = plan.data_start();
        for (position, placement) in plan.placements().iter().enumerate() {
            prop_assert_eq!(placement.input_index, position);
            prop_assert_eq!(placement.offset % alignment, 0);
            prop_assert_eq!(placement.offset, cursor + placement.gap_before);
            prop_assert!(placement.gap_before < alignment);
            cursor = placement.offset + placement.nbytes;
        }
        prop_assert_eq!(plan.file_size(), cursor);
    }

    #[test]
    fn the_header_matches_the_plan_and_is_deterministic(tensors in tensors(), padded: bool) {
        let specs = specs(&tensors);
        let layout = if padded { Layout::Padded } else { Layout::Compact };
        let options = LayoutOptions { layout, alignment: 64 };
        let metadata = [("format", "mlx"), ("\n\u{0}é", "\u{0}\"\\")];
        let plan = Plan::new(&specs, &metadata, &options).expect("plans");
        let again = Plan::new(&specs, &metadata, &options).expect("plans");
        prop_assert_eq!(plan.header(), again.header());

        let header = Header::parse(&plan.header()[8..]).expect("parses");
        prop_assert_eq!(header.data_start(), plan.data_start());
        prop_assert_eq!(header.metadata().collect::<Vec<_>>(), metadata);
        prop_assert_eq!(header.len(), specs.len());
        for placement in plan.placements() {
            let spec = &specs[placement.input_index];
            let index = header.find(spec.name).expect("is there");
            let info = header.get(index).expect("is there");
            prop_assert_eq!((info.name, info.dtype, info.shape), (spec.name, Some(spec.dtype), spec.shape));
            prop_assert_eq!(header.data_start() + info.begin, placement.offset);
            prop_assert_eq!(info.nbytes(), placement.nbytes);
        }
        let survey = header.survey(plan.file_size() - plan.data_start()).expect("valid");
        prop_assert_eq!(survey.misaligned_tensors, 0);
        prop_assert_eq!(survey.gap_bytes, plan.gap_bytes());
        prop_assert_eq!(survey.trailing_bytes, 0);
    }

    #[test]
    fn the_reference_opens_every_compact_file(
        tensors in tensors_up_to(16),
        alignment in prop::sample::select(vec![8u64, 64, 4096]),
    ) {
        let specs = specs(&tensors);
        let plan = Plan::new(&specs, &[], &LayoutOptions { layout: Layout::Compact, alignment }).expect("plans");
        let mut file = plan.header().to_vec();
        file.resize(plan.file_size() as usize, 7);
        let opened = safetensors::SafeTensors::deserialize(&file);
        prop_assert!(opened.is_ok(), "{:?}", opened.err());
    }
}

/// Control: without alignment, tensors of these sizes are misaligned.
#[test]
fn tensors_written_without_alignment_are_misaligned() {
    let tensors = common::hostile();
    let file = common::packed(&tensors);
    let json_len = u64::from_le_bytes(*file.first_chunk().expect("8 bytes"));
    let header = Header::parse(&file[8..][..json_len as usize]).expect("parses");
    let survey = header.survey(file.len() as u64 - header.data_start()).expect("valid");
    assert!(survey.misaligned_tensors > 5, "{survey:?}");
    assert!(survey.nonconforming.is_none());
}

#[test]
fn invalid_tensors_and_metadata_are_refused() {
    let good = TensorSpec { name: "w", dtype: Dtype::F32, shape: &[2, 2], nbytes: 16 };
    let refused = |tensors: &[TensorSpec], metadata: &[(&str, &str)], part: &str| {
        let error = Plan::new(tensors, metadata, &LayoutOptions::default()).expect_err(part);
        assert_eq!(error.status(), Status::InvalidArgument, "{error}");
        assert!(error.message().contains(part), "{error} does not say {part}");
    };
    assert!(Plan::new(&[good], &[], &LayoutOptions::default()).is_ok());
    refused(&[good, good], &[], "tensor `w`: two tensors");
    refused(&[TensorSpec { name: "__metadata__", ..good }], &[], "reserved");
    refused(&[TensorSpec { name: "a\0b", ..good }], &[], "NUL");
    refused(&[TensorSpec { nbytes: 12, ..good }], &[], "tensor `w`: 12 bytes for F32 [2, 2], expected 16");
    refused(&[TensorSpec { shape: &[u64::MAX, 2], ..good }], &[], "overflows");
    // No bytes, but the reference multiplies from the left and overflows before it reaches the zero.
    refused(&[TensorSpec { shape: &[1 << 33, 1 << 33, 0], nbytes: 0, ..good }], &[], "overflow");
    assert!(
        Plan::new(&[TensorSpec { shape: &[0, 1 << 33, 1 << 33], nbytes: 0, ..good }], &[], &Default::default()).is_ok()
    );
    refused(&[TensorSpec { dtype: Dtype::F4, shape: &[3], nbytes: 2, ..good }], &[], "12 bits");
    refused(&[good], &[("k", "1"), ("k", "2")], "metadata `k`: two entries");
    for alignment in [0, 1, 4, 12, 4 << 20, u64::MAX] {
        let options = LayoutOptions { alignment, ..LayoutOptions::default() };
        let error = Plan::new(&[good], &[], &options).expect_err("a bad alignment");
        assert!(error.message().contains(&alignment.to_string()), "{error}");
    }
}

#[test]
fn a_header_that_readers_refuse_is_not_written() {
    let name = |len: usize| "n".repeat(len);
    let plan = |name: &str| {
        let spec = TensorSpec { name, dtype: Dtype::U8, shape: &[], nbytes: 1 };
        Plan::new(&[spec], &[], &LayoutOptions { alignment: 8, ..LayoutOptions::default() })
    };
    // The header has 99,999,992 bytes, the most that is allowed.
    let longest = 99_999_992 - r#"{"":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#.len();
    assert_eq!(plan(&name(longest)).expect("fits").header().len(), 100_000_000);
    let error = plan(&name(longest + 1)).expect_err("does not fit");
    assert_eq!(error.status(), Status::TooLarge);
}

#[test]
fn sizes_past_the_largest_file_are_refused() {
    let half = TensorSpec { name: "a", dtype: Dtype::U8, shape: &[1 << 60], nbytes: 1 << 60 };
    let names: Vec<String> = (0..16).map(|number| number.to_string()).collect();
    let specs: Vec<TensorSpec> = names.iter().map(|name| TensorSpec { name, ..half }).collect();
    let error = Plan::new(&specs, &[], &LayoutOptions::default()).expect_err("too large");
    assert_eq!(error.status(), Status::TooLarge);
    assert!(Plan::new(&specs[..4], &[], &LayoutOptions::default()).is_ok());
}
