//! The rows.

use std::fs;
use std::path::{Path, PathBuf};

use safealign::header::Header;
use safealign::layout::LayoutOptions;
use safealign::map::{Advice, File, OpenOptions, ReadAhead};
use safealign::repair::{RepairOptions, repair};
use safealign::scan::{ScanOptions, scan};
use safealign::writer::{Durability, Tensor, WriteOptions, write_aligned};

use crate::floors::{self, timed};
use crate::models::Model;
use crate::{Settings, memory, peers};

/// The result of one contender in a row.
pub struct Entry {
    pub name: String,
    /// One figure a turn, in the row's unit.
    pub figures: Vec<f64>,
}

/// A row: the floor first, then us, then the peers.
pub struct Row {
    pub name: String,
    pub unit: &'static str,
    /// What ours has to reach: a ratio to the floor, or a figure.
    pub goal: Goal,
    pub entries: Vec<Entry>,
}

#[derive(Clone, Copy)]
pub enum Goal {
    Ratio(f64),
    Figure(f64),
}

type Contender<'a> = (String, Box<dyn FnMut() -> f64 + 'a>);

fn contender<'a>(name: &str, work: impl FnMut() -> f64 + 'a) -> Contender<'a> {
    (name.to_owned(), Box::new(work))
}

fn millis(duration: std::time::Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Lets the contenders take turns.
fn row(settings: &Settings, name: &str, unit: &'static str, goal: Goal, mut contenders: Vec<Contender>) -> Option<Row> {
    if settings.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
        return None;
    }
    eprintln!("{name}");
    let mut entries: Vec<Entry> =
        contenders.iter().map(|(name, _)| Entry { name: name.clone(), figures: Vec::new() }).collect();
    // A first turn warms up and does not count.
    for turn in 0..=settings.turns {
        for ((_, work), entry) in contenders.iter_mut().zip(&mut entries) {
            let figure = work();
            if turn > 0 {
                entry.figures.push(figure);
            }
        }
    }
    Some(Row { name: name.to_owned(), unit, goal, entries })
}

fn write_ours(path: &Path, tensors: &[Tensor], durability: Durability) -> f64 {
    let options = WriteOptions { durability, ..WriteOptions::default() };
    millis(timed(|| write_aligned(path, tensors, &[], options).expect("writes")))
}

fn write_crate(path: &Path, tensors: &[Tensor], sync: bool) -> f64 {
    let view = |tensor: &Tensor| {
        let dtype = serde_json::from_value(tensor.dtype.name().into()).expect("a dtype");
        let shape = tensor.shape.iter().map(|&dimension| dimension as usize).collect();
        let bytes = tensor.data.len();
        // SAFETY: the model outlives the benchmark; the view wants a lifetime of its own.
        let data: &'static [u8] = unsafe { std::slice::from_raw_parts(tensor.data.as_ptr(), bytes) };
        (tensor.name.to_owned(), safetensors::tensor::TensorView::new(dtype, shape, data).expect("a view"))
    };
    let views: Vec<_> = tensors.iter().map(view).collect();
    millis(timed(|| {
        safetensors::serialize_to_file(views, None, path).expect("writes");
        if sync {
            fs::File::open(path).and_then(|file| file.sync_all()).expect("syncs");
        }
    }))
}

fn write_row(
    settings: &Settings,
    name: &str,
    model: &Model,
    directory: &Path,
    durable: bool,
    goal: f64,
) -> Option<Row> {
    let tensors = model.tensors();
    let path = |who: &str| directory.join(format!("write-{who}.safetensors"));
    let recipe = directory.join("recipe");
    fs::write(&recipe, model.recipe()).expect("writes");
    let durability = if durable { Durability::Durable } else { Durability::NotDurable };
    let fresh = |path: PathBuf| {
        // Each turn creates a new file: writing over old pages would be different work.
        let _ = fs::remove_file(&path);
        path
    };
    let mut contenders = vec![
        contender("floor: write, 4 MiB pieces", || {
            let path = fresh(path("floor"));
            millis(timed(|| floors::write(&path, model.bytes(), durable).expect("writes")))
        }),
        contender("safealign", || write_ours(&fresh(path("ours")), &tensors, durability)),
        contender("crate safetensors", || write_crate(&fresh(path("crate")), &tensors, durable)),
    ];
    for mut peer in [peers::python(), peers::mlx()].into_iter().flatten() {
        if settings.only.as_ref().is_none_or(|only| name.contains(only.as_str())) {
            peer.time("model", &recipe);
        }
        let path = path(&peer.name.replace(' ', "-"));
        contenders.push((
            peer.name.clone(),
            Box::new(move || {
                let path = fresh(path.clone());
                let took = peer.time("write", &path);
                if !durable {
                    return millis(took);
                }
                // Neither syncs by itself; what they would pay for it belongs to the comparison.
                millis(took + timed(|| fs::File::open(&path).and_then(|file| file.sync_all()).expect("syncs")))
            }),
        ));
    }
    let row = row(settings, name, "ms", Goal::Ratio(goal), contenders);
    for entry in fs::read_dir(directory).expect("lists").flatten() {
        let _ = fs::remove_file(entry.path());
    }
    row
}

fn open_row(settings: &Settings, name: &str, path: &Path, goal: f64) -> Option<Row> {
    let mut contenders = vec![
        contender("floor: read, serde_json skips every value", || millis(timed(|| floors::skip_json(path)))),
        contender("safealign", || millis(timed(|| File::open(path, &OpenOptions::default()).expect("opens")))),
        contender("crate safetensors", || millis(timed(|| peers::open_with_crate(path)))),
    ];
    for mut peer in [peers::python(), peers::mlx()].into_iter().flatten() {
        contenders.push((peer.name.clone(), Box::new(move || millis(peer.time("open", path)))));
    }
    row(settings, name, "ms", Goal::Figure(goal), contenders)
}

fn memory_row(settings: &Settings, name: &str, path: &Path, goal: f64) -> Option<Row> {
    let mib = |kib: u64| kib as f64 / 1024.0;
    let mut contenders = vec![
        contender("floor", || 0.0),
        contender("safealign", || mib(memory::measure("ours", path))),
        contender("crate safetensors", || mib(memory::measure("crate", path))),
    ];
    // A peer holds on to memory that it has used once, so each turn gets a new one.
    if peers::python().is_some() {
        contenders.push(contender("Python safetensors", || {
            mib(peers::python().map_or(0, |mut peer| peer.ask(&format!("touch {}", path.display()))))
        }));
    }
    if peers::mlx().is_some() {
        contenders.push(contender("MLX", || {
            mib(peers::mlx().map_or(0, |mut peer| peer.ask(&format!("touch {}", path.display()))))
        }));
    }
    row(settings, name, "MiB", Goal::Figure(goal), contenders)
}

fn repair_row(settings: &Settings, name: &str, path: &Path, compare: bool, goal: f64) -> Option<Row> {
    let out = &path.with_extension("out");
    let fresh = move || {
        let _ = fs::remove_file(out);
    };
    let mut contenders = vec![
        contender("floor: cp --reflink=never", || {
            fresh();
            millis(timed(|| floors::copy(path, out)))
        }),
        contender("safealign", || {
            fresh();
            let durability = Durability::NotDurable;
            let mut options = RepairOptions { durability, verify: compare, ..RepairOptions::default() };
            millis(timed(|| repair(path, Some(out), &mut options).expect("repairs")))
        }),
    ];
    let command = format!("rewrite {}", path.display());
    if let Some(mut peer) = peers::python() {
        contenders.push((
            format!("{} load, save", peer.name),
            Box::new(move || {
                fresh();
                millis(peer.time(&command, out))
            }),
        ));
    }
    row(settings, name, "ms", Goal::Ratio(goal), contenders)
}

fn scan_row(settings: &Settings, directory: &Path) -> Option<Row> {
    let model = Model::experts(95, 1);
    let paths: Vec<PathBuf> = (0..500).map(|number| directory.join(format!("{number:03}.safetensors"))).collect();
    let plan = write_aligned(&paths[0], &model.tensors(), &[], WriteOptions::default()).expect("writes");
    for path in &paths[1..] {
        fs::copy(&paths[0], path).expect("copies");
    }
    let header = plan.data_start;
    let mut contenders = vec![
        contender("floor: read, serde_json skips every value", || {
            millis(timed(|| paths.iter().for_each(|path| floors::skip_json(path))))
        }),
        contender("safealign", || {
            let scan = |path: &PathBuf| scan(path, &ScanOptions::default()).expect("scans").misaligned_tensors;
            millis(timed(|| paths.iter().map(scan).sum::<u64>()))
        }),
        contender("crate safetensors", || {
            let read = |path: &PathBuf| peers::open_with_crate(path).1.tensors().len();
            millis(timed(|| paths.iter().map(read).sum::<usize>()))
        }),
    ];
    if let Some(mut peer) = peers::python() {
        contenders.push((peer.name.clone(), Box::new(move || millis(peer.time("scan", directory)))));
    }
    let name = format!("scan 500 warm shards, {} KB headers, one thread", header / 1000);
    row(settings, &name, "ms", Goal::Figure(25.0), contenders)
}

/// Opening a file that is on the disk only, and touching every page of it in the order of the file.
fn cold_row(settings: &Settings, path: &Path) -> Option<Row> {
    let touch = |read_ahead: ReadAhead, advice: Option<Advice>| {
        let file = fs::File::open(path).expect("opens");
        file.sync_all().expect("syncs");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("evicts");
        millis(timed(|| {
            let file = File::open(path, &OpenOptions { read_ahead, ..OpenOptions::default() }).expect("opens");
            for index in 0..file.len() {
                let view = file.map_at(index).expect("maps");
                if let Some(advice) = advice {
                    view.advise(advice).expect("advises");
                }
                std::hint::black_box(memory::touch(memory::mapped(&view)));
            }
        }))
    };
    let contenders = vec![
        contender("floor: touched as it comes", || touch(ReadAhead::None, None)),
        contender("safealign, read ahead in the background", || touch(ReadAhead::Background, None)),
        contender("populated when opened", || touch(ReadAhead::Populate, None)),
        contender("advised will need, tensor by tensor", || touch(ReadAhead::None, Some(Advice::WillNeed))),
        contender("advised sequential", || touch(ReadAhead::None, Some(Advice::Sequential))),
    ];
    row(settings, "first touch of every page, 256 MiB, cold, disk", "ms", Goal::Ratio(1.1), contenders)
}

/// The copies of misaligned tensors.
fn copies_row(settings: &Settings, path: &Path) -> Option<Row> {
    let contenders = vec![
        contender("floor: memcpy into new memory", || {
            let bytes = fs::read(path).expect("reads");
            millis(timed(|| std::hint::black_box(bytes.clone())))
        }),
        contender("safealign", || {
            let file = File::open(path, &OpenOptions::default()).expect("opens");
            millis(timed(|| (0..file.len()).map(|index| file.map_at(index).expect("maps")).collect::<Vec<_>>()))
        }),
    ];
    row(settings, "aligned copies of every tensor, s, misaligned, tmpfs", "ms", Goal::Ratio(1.15), contenders)
}

/// Looking up one name, and every name, in a file that is open.
fn lookup_row(settings: &Settings, model: &Model, path: &Path) -> Option<Row> {
    let header = floors::header(path);
    let parsed = Header::parse(&header).expect("parses");
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&fs::read(path).expect("reads")).expect("opens");
    let tensors = model.tensors();
    let mut sorted: Vec<(&str, usize)> = tensors.iter().map(|tensor| tensor.name).zip(0..).collect();
    sorted.sort_unstable();
    let each = |find: &dyn Fn(&str) -> usize| {
        let work = || tensors.iter().map(|tensor| find(tensor.name)).sum::<usize>();
        timed(work).as_secs_f64() * 1e9 / tensors.len() as f64
    };
    let contenders = vec![
        contender("floor: a sorted list, binary search", || {
            each(&|name| sorted.binary_search_by_key(&name, |entry| entry.0).expect("is there"))
        }),
        contender("safealign", || each(&|name| parsed.find(name).expect("is there"))),
        contender("crate safetensors", || each(&|name| metadata.info(name).expect("is there").data_offsets.0)),
    ];
    row(settings, "look up a name, b, every name once", "ns a name", Goal::Ratio(1.0), contenders)
}

/// Every row that the settings ask for.
pub fn run(settings: &Settings) -> Vec<Row> {
    let (tmp, disk) = (&settings.memory, &settings.disk);
    let mut rows = Vec::new();
    let plain = |path: &Path, model: &Model| {
        let options = WriteOptions { layout: LayoutOptions::default(), ..WriteOptions::default() };
        write_aligned(path, &model.tensors(), &[], options).expect("writes");
    };
    {
        let s = Model::large_tensors(256 << 20);
        rows.extend(write_row(settings, "write s, not durable, tmpfs", &s, tmp, false, 1.0));
        let path = tmp.join("packed-s.safetensors");
        fs::write(&path, packed(&s)).expect("writes");
        rows.extend(copies_row(settings, &path));
        rows.extend(repair_row(settings, "repair s, without the compare, tmpfs", &path, false, 1.15));
        rows.extend(repair_row(settings, "repair s, with the compare, tmpfs", &path, true, 2.0));
        let peak = contender("safealign", || memory::measure("repair", &path) as f64 / 1024.0);
        let contenders = vec![contender("floor", || 0.0), peak];
        rows.extend(row(settings, "repair s, growth of peak memory", "MiB", Goal::Figure(8.0), contenders));
        fs::remove_file(path).expect("removes");
    }
    {
        let s = Model::large_tensors(256 << 20);
        let path = disk.join("cold.safetensors");
        plain(&path, &s);
        rows.extend(cold_row(settings, &path));
        fs::remove_file(path).expect("removes");
    }
    {
        let b = Model::experts(50_000, 32);
        rows.extend(write_row(settings, "write b, not durable, tmpfs", &b, tmp, false, 1.5));
        let path = tmp.join("b.safetensors");
        plain(&path, &b);
        rows.extend(open_row(settings, "open b", &path, 15.0));
        rows.extend(lookup_row(settings, &b, &path));
        rows.extend(memory_row(settings, "anonymous memory after touching every tensor, b", &path, 12.0));
        fs::remove_file(path).expect("removes");
    }
    {
        let a = Model::large_tensors(2 << 30);
        rows.extend(write_row(settings, "write a, durable, disk", &a, disk, true, 0.75));
        let path = tmp.join("a.safetensors");
        plain(&path, &a);
        rows.extend(open_row(settings, "open a", &path, 0.070));
        // As MLX writes it, where MLX has to copy; ours reads the aligned file that it would have written.
        rows.extend(memory_row(settings, "anonymous memory after touching every tensor, a", &path, 0.3));
        fs::remove_file(path).expect("removes");
    }
    rows.extend(scan_row(settings, &directory_in(tmp, "shards")));
    rows
}

fn directory_in(parent: &Path, name: &str) -> PathBuf {
    let path = parent.join(name);
    fs::create_dir_all(&path).expect("a directory");
    path
}

/// A model written without alignment.
fn packed(model: &Model) -> Vec<u8> {
    let mut header = String::from("{");
    let mut at = 0;
    for tensor in model.tensors() {
        let end = at + tensor.data.len();
        let comma = if header.len() > 1 { "," } else { "" };
        header += &format!(
            "{comma}\"{}\":{{\"dtype\":\"{}\",\"shape\":{:?},\"data_offsets\":[{at},{end}]}}",
            tensor.name,
            tensor.dtype.name(),
            tensor.shape
        );
        at = end;
    }
    header += "}";
    // An odd length, so that nothing wider than a byte is aligned by chance.
    while header.len() % 2 == 0 {
        header += " ";
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(model.bytes());
    file
}
