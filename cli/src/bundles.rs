//! Compares the tensors of the shards of each bundle with each other and with the index.

use std::path::Path;

use rayon::prelude::*;
use safealign::bundle::{Finding, compare};
use safealign::error::Status;
use safealign::header::Header;
use safealign::scan::read_header;

use crate::find::{Found, Problem, Sharded};
use crate::output::shown;

/// Adds errors for tensors that two shards of a bundle have, and warnings for tensors that are not where the index
/// lists them and for tensors that no index lists. Files that cannot be read are left out.
pub fn check_bundles(found: &mut Found) {
    let checked: Vec<_> = found.bundles.par_iter().map(check).collect();
    for (bundle, messages) in found.bundles.iter().zip(checked) {
        let path = bundle.index.as_ref().map_or(&bundle.directory, |(path, _)| path);
        if let Some(message) = messages.error {
            found.errors.push(Problem { path: path.clone(), message, status: Status::Format });
        }
        found.warnings.extend(messages.warnings.into_iter().map(|message| (path.clone(), message)));
    }
}

struct Messages {
    error: Option<String>,
    warnings: Vec<String>,
}

fn check(bundle: &Sharded) -> Messages {
    let read = |shard| read_header(&bundle.directory.join(shard)).ok().map(|(header, _)| header);
    let headers: Vec<Option<Header>> = bundle.shards.par_iter().map(read).collect();
    let headers: Vec<Option<&Header>> = headers.iter().map(Option::as_ref).collect();
    let name = |shard: usize| shown(bundle.shards.get(shard).map_or(Path::new(""), |path| path));
    let (mut duplicate, mut absent, mut unlisted) = (Count::default(), Count::default(), Count::default());
    for finding in compare(&headers, bundle.index.as_ref().map(|(_, index)| index)) {
        match finding {
            Finding::Duplicate { tensor, shards: [first, second] } => {
                duplicate.add(|| format!("tensor `{tensor}` is in `{}` and in `{}`", name(first), name(second)));
            }
            Finding::Absent { tensor, shard } => {
                absent.add(|| format!("tensor `{tensor}` is not in `{}`, as the index says", name(shard)));
            }
            Finding::Unlisted { tensor, shard } => {
                unlisted.add(|| format!("tensor `{tensor}` of `{}` is not in the index", name(shard)));
            }
        }
    }
    // An index with entries outside its directory has its own errors, and lists less than it should.
    let has_outside = bundle.index.as_ref().is_some_and(|(_, index)| !index.outside().is_empty());
    let warnings = [absent, unlisted].into_iter().filter(|_| !has_outside).filter_map(Count::message).collect();
    Messages { error: duplicate.message(), warnings }
}

/// The first message of a kind, and the number of the others.
#[derive(Default)]
struct Count {
    first: Option<String>,
    more: usize,
}

impl Count {
    fn add(&mut self, message: impl FnOnce() -> String) {
        match self.first {
            None => self.first = Some(message()),
            Some(_) => self.more += 1,
        }
    }

    fn message(self) -> Option<String> {
        let more = if self.more > 0 { format!(" (and {} more)", self.more) } else { String::new() };
        Some(self.first? + &more)
    }
}
