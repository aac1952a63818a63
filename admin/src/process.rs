//! What any process can tell of itself.

use std::fs;

use rustix::process::{Resource, getrlimit};

use crate::Family;

/// The numbers of this process. What the system does not tell is left out.
pub(crate) fn families() -> Vec<Family> {
    let channels = memory_ipc::counters();
    let mut families = vec![
        Family::counter(
            "log_lines_lost_total",
            "Log lines that could not be written",
        )
        .value(memory_log::lost_lines()),
        Family::counter(
            "channel_faults_total",
            "Packets between the roles that were refused or lost their descriptors",
        )
        .sample(&[("fault", "descriptors-lost")], channels.descriptors_lost)
        .sample(
            &[("fault", "descriptor-count")],
            channels.descriptor_counts_wrong,
        )
        .sample(&[("fault", "too-long")], channels.packets_too_long)
        .sample(&[("fault", "malformed")], channels.packets_malformed),
    ];
    let measured = [
        (
            "resident_memory_bytes",
            "Memory of the role's process",
            resident(),
        ),
        (
            "open_descriptors",
            "Descriptors that it has open",
            descriptors(),
        ),
        (
            "max_descriptors",
            "Descriptors that it may have open",
            getrlimit(Resource::Nofile).current,
        ),
    ];
    families.extend(
        measured
            .into_iter()
            .filter_map(|(name, help, number)| Some(Family::gauge(name, help).value(number?))),
    );
    families
}

/// Resident memory in bytes: the second number of `statm`, in pages (proc_pid_statm(5)).
fn resident() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(u64::try_from(rustix::param::page_size()).ok()?)
}

fn descriptors() -> Option<u64> {
    let open = fs::read_dir("/proc/self/fd").ok()?.count();
    // The directory itself was open for as long as it was read.
    u64::try_from(open).ok()?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Number;

    #[test]
    fn memory_and_descriptors_are_told() {
        for name in ["resident_memory_bytes", "open_descriptors"] {
            let families = families();
            let family = families.iter().find(|family| family.name == name).unwrap();
            let Number::Integer(number) = family.samples[0].value else {
                panic!("{family:?}");
            };
            assert!(number > 2, "{family:?}");
        }
    }
}
