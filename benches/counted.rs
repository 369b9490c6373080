//! Work on small fixed inputs whose instructions `scripts/instructions.py` counts. Model **b**, with 2,000 tensors.
//!
//!     counted open|plan|write|find FILE

use std::hint::black_box;
use std::path::Path;

use safealign::layout::{LayoutOptions, Plan, TensorSpec};
use safealign::map::{File, OpenOptions};
use safealign::writer::{Durability, Tensor, WriteOptions, write_aligned};

#[path = "table/models.rs"]
#[allow(dead_code, reason = "the table uses the rest")]
mod models;

/// What is counted is what happens below this function. A closure, so that all kinds of work have one name.
#[inline(never)]
#[unsafe(no_mangle)]
fn counted_work(work: &mut dyn FnMut()) {
    work();
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, path] = &arguments[..] else { panic!("usage: counted open|plan|write|find FILE") };
    let path = Path::new(path);
    let model = models::Model::experts(2_000, 4);
    let tensors = model.tensors();
    let write = || {
        let options = WriteOptions { durability: Durability::NotDurable, ..WriteOptions::default() };
        write_aligned(path, &tensors, &[], options).expect("writes")
    };
    let open = || File::open(path, &OpenOptions::default()).expect("opens");
    match &what[..] {
        "open" => {
            write();
            counted_work(&mut || drop(black_box(open())));
        }
        "plan" => {
            let specs: Vec<TensorSpec> = tensors.iter().map(Tensor::spec).collect();
            counted_work(&mut || drop(black_box(Plan::new(&specs, &[], &LayoutOptions::default()).expect("plans"))));
        }
        "write" => counted_work(&mut || {
            black_box(write());
        }),
        "find" => {
            write();
            let file = open();
            counted_work(&mut || {
                for tensor in &tensors {
                    black_box(file.map(tensor.name).expect("maps"));
                }
            });
        }
        _ => panic!("{what}?"),
    }
    let _ = std::fs::remove_file(path);
}
