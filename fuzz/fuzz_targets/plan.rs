//! Any tensors: a plan is refused, or its header parses back to what was asked for and the reference opens it.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use safealign::dtype::Dtype;
use safealign::header::Header;
use safealign::layout::{Layout, LayoutOptions, Plan, TensorSpec};

#[derive(Arbitrary, Debug)]
struct Input {
    tensors: Vec<(String, u8, Vec<u16>)>,
    metadata: Vec<(String, String)>,
    exponent: u8,
    padded: bool,
}

fuzz_target!(|input: Input| {
    let shapes: Vec<Vec<u64>> =
        input.tensors.iter().map(|tensor| tensor.2.iter().map(|&dimension| u64::from(dimension)).collect()).collect();
    let specs: Vec<TensorSpec> = input
        .tensors
        .iter()
        .zip(&shapes)
        .map(|((name, dtype, _), shape)| {
            let dtype = Dtype::ALL[*dtype as usize % Dtype::ALL.len()];
            TensorSpec { name, dtype, shape, nbytes: dtype.nbytes(shape).unwrap_or(1) }
        })
        .collect();
    let metadata: Vec<(&str, &str)> = input.metadata.iter().map(|(key, value)| (&key[..], &value[..])).collect();
    let layout = if input.padded { Layout::Padded } else { Layout::Compact };
    let options = LayoutOptions { layout, alignment: 1 << (input.exponent % 24) };
    let Ok(plan) = Plan::new(&specs, &metadata, &options) else { return };
    let header = Header::parse(&plan.header()[8..]).expect("parses");
    let survey = header.survey(plan.file_size() - plan.data_start()).expect("valid");
    assert_eq!(survey.misaligned_tensors, 0);
    assert_eq!(header.len(), specs.len());
    assert!(header.metadata().eq(metadata.iter().copied()));
    for spec in &specs {
        let info = header.get(header.find(spec.name).expect("is there")).expect("is there");
        assert_eq!((info.dtype, info.shape, info.nbytes()), (Some(spec.dtype), spec.shape, spec.nbytes));
    }
    if plan.file_size() < 1 << 20 && !input.padded {
        let mut file = plan.header().to_vec();
        file.resize(plan.file_size() as usize, 0);
        safetensors::SafeTensors::deserialize(&file).expect("the reference opens it");
    }
});
