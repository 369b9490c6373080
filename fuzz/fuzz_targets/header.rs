//! Any bytes as a file: nothing panics, and what `strict` would open is what the reference opens.
#![no_main]

use libfuzzer_sys::fuzz_target;
use safealign::error::{Error, Reason};
use safealign::header::{Header, Survey, read_prefix};

fn survey(file: &[u8]) -> Result<Survey, Error> {
    let json_len = read_prefix(&file[..file.len().min(8)], file.len() as u64)?;
    let header = Header::parse(&file[8..][..json_len as usize])?;
    header.require_known_dtypes()?;
    let survey = header.survey(file.len() as u64 - header.data_start())?;
    for (index, tensor) in header.iter().enumerate() {
        assert_eq!(header.find(tensor.name), Some(index));
        assert!(header.data_start() + tensor.end <= file.len() as u64);
    }
    Ok(survey)
}

fuzz_target!(|file: &[u8]| {
    let reference = safetensors::SafeTensors::deserialize(file);
    match survey(file) {
        Ok(survey) => assert_eq!(survey.nonconforming.is_none(), reference.is_ok(), "{survey:?}"),
        Err(error) if reference.is_ok() => {
            let on_purpose = [Reason::DuplicateKey, Reason::BadName, Reason::BadTensorInfo];
            assert!(error.reason().is_some_and(|reason| on_purpose.contains(&reason)), "{error}");
        }
        Err(_) => {}
    }
});
