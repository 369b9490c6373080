//! `safealign overlay`.

use std::io;
use std::ops::ControlFlow;

use safealign::error::Status;
use safealign::overlay::{OverlayOptions, overlay};

use crate::Outcome;
use crate::args::Overlay;
use crate::fields;
use crate::interrupt::Interrupt;
use crate::output::{self, Size, count, json_line, print_line, shown};
use crate::progress::Bar;
use crate::report::error_fields;

pub fn run(args: &Overlay) -> io::Result<Outcome> {
    let interrupt = Interrupt::catch()?;
    let bar = Bar::new(1, false);
    let mut progress = |done, total| {
        bar.set_total(total);
        bar.set_position(done);
        if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut options = OverlayOptions {
        layout: args.write.layout(),
        durability: args.write.durability(),
        verify: !args.write.no_verify,
        drop_trailing: args.write.drop_trailing,
        progress: Some(&mut progress),
    };
    let outcome = overlay(&args.bundle, &args.output, &mut options);
    bar.finish();
    let report = match outcome {
        Ok(report) => report,
        Err(error) if error.status() == Status::Cancelled => {
            output::error("interrupted: all files written so far are complete; run the command again to continue");
            return Ok(Outcome::Failed);
        }
        Err(error) => {
            if args.json {
                json_line(&mut io::stdout(), "error", error_fields(&args.bundle, &error))?;
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
        print_line(&format!(
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
