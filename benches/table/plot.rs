//! Cost against the number of tensors, and against bytes: lines for `scripts/plot.py`.

use std::fs;
use std::path::Path;

use safealign::map::{File, OpenOptions};
use safealign::writer::{Durability, WriteOptions, write_aligned};

use crate::floors::timed;
use crate::models::Model;
use crate::report::median;
use crate::{Settings, peers};

/// Prints `what who x milliseconds`, a line a point.
pub fn run(settings: &Settings) {
    let path = settings.memory.join("plot.safetensors");
    let recipe = settings.memory.join("recipe");
    for count in [1u64, 10, 100, 1000, 10_000, 100_000, 1_000_000] {
        // Every file has about the same bytes, so that it is their number that is seen.
        let model = Model::numbered(count, (1u64 << 26) / 66 / count.max(1) + 1);
        point(settings, "tensors", count, &model, &path, &recipe);
    }
    for shift in [16, 20, 24, 28, 31] {
        let model = Model::large_tensors(1 << shift);
        point(settings, "bytes", 1 << shift, &model, &path, &recipe);
    }
}

fn point(settings: &Settings, axis: &str, at: u64, model: &Model, path: &Path, recipe: &Path) {
    let turns = if at > 200_000 && axis == "tensors" { 3 } else { settings.turns };
    let tensors = model.tensors();
    let show = |what: &str, who: &str, work: &mut dyn FnMut() -> f64| {
        work();
        let figures: Vec<f64> = (0..turns).map(|_| work()).collect();
        println!("{axis} {what} {} {at} {}", who.replace(' ', "_"), median(&figures));
    };
    let millis = |duration: std::time::Duration| duration.as_secs_f64() * 1e3;
    show("write", "safealign", &mut || {
        let _ = fs::remove_file(path);
        let options = WriteOptions { durability: Durability::NotDurable, ..WriteOptions::default() };
        millis(timed(|| write_aligned(path, &tensors, &[], options).expect("writes")))
    });
    show("open", "safealign", &mut || millis(timed(|| File::open(path, &OpenOptions::default()).expect("opens"))));
    show("open", "crate safetensors", &mut || millis(timed(|| peers::open_with_crate(path))));
    fs::write(recipe, model.recipe()).expect("writes");
    for mut peer in [peers::python(), peers::mlx()].into_iter().flatten() {
        peer.time("model", recipe);
        let name = peer.name.clone();
        show("open", &name, &mut || millis(peer.time("open", path)));
        show("write", &name, &mut || {
            let _ = fs::remove_file(path);
            millis(peer.time("write", path))
        });
    }
    let _ = fs::remove_file(path);
}
