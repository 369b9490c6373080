//! `safealign overlay`.

use std::io;
use std::ops::ControlFlow;

use safealign::error::Status;
use safealign::overlay::{OverlayOptions, overlay};
use safealign::writer::Durability;

use crate::Outcome;
use crate::args::Overlay;
use crate::fields;
use crate::interrupt::Interrupt;
use crate::output::{self, Size, count, json_line, shown};
use crate::repair::{Bar, say};
use crate::scan::error_fields;

pub fn run(args: &Overlay) -> io::Result<Outcome> {
    let interrupt = Interrupt::catch()?;
    let bar = Bar::new(1, false);
    let mut progress = |done, total| {
        bar.of(total);
        bar.set(done);
        if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut options = OverlayOptions {
        layout: args.how.layout(),
        durability: if args.how.no_sync { Durability::NotDurable } else { Durability::Durable },
        skip_compare: args.how.no_verify,
        drop_trailing: args.how.drop_trailing,
        progress: Some(&mut progress),
    };
    let outcome = overlay(&args.bundle, &args.output, &mut options);
    bar.finish();
    let report = match outcome {
        Ok(report) => report,
        Err(error) if error.status() == Status::Cancelled => {
            output::error("interrupted: what is written is whole; run it again to go on");
            return Ok(Outcome::Failed);
        }
        Err(error) => {
            if args.json {
                let path = error.path().map_or_else(|| shown(&args.bundle), shown);
                json_line(&mut io::stdout(), "error", error_fields(&path, &error))?;
            }
            output::error(&error.to_string());
            return Ok(Outcome::Failed);
        }
    };
    for (path, message) in &report.warnings {
        if args.json {
            json_line(&mut io::stdout(), "warning", fields! { path: shown(path), message: message })?;
        }
        output::warning(&format!("{}: {message}", shown(path)));
    }
    if args.json {
        let fields = fields! {
            bundle: shown(&args.bundle),
            output: shown(&args.output),
            written: report.written,
            bytes_written: report.bytes_written,
            kept: report.kept,
            bytes_kept: report.bytes_kept,
            linked: report.linked,
            removed: report.removed,
        };
        json_line(&mut io::stdout(), "overlay", fields)?;
    } else {
        say(&format!(
            "{}: {} repaired ({}), {} up to date ({}), {}{}",
            shown(&args.output),
            count(report.written, "file"),
            Size(report.bytes_written),
            report.kept,
            Size(report.bytes_kept),
            count(report.linked, "link"),
            if report.removed > 0 { format!(", {} removed", report.removed) } else { String::new() },
        ));
    }
    Ok(Outcome::Fine)
}
