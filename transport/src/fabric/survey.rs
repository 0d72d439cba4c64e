//! The report on discovery: every offer with its verdict, for `trihop info` and for the error when
//! none is usable.

use libfabric_sys as sys;

use super::adapters::Adapters;
use super::choice::Choice;
use super::info::{
    self, CAPABILITIES, Description, MODES, MR_MODES, Rank, all_offers, names_of, usable_offers,
};
use super::quirks;
use crate::error::Result;
use crate::link::Mover;
use crate::nics::{Nic, Sysfs};

/// All that libfabric has, judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// Version of the loaded library, e.g. `1.17`.
    pub library_version: String,
    /// Version of the headers that this program was built with.
    pub header_version: String,
    /// Candidates in libfabric's order; first those that meet the needs, then the others.
    pub candidates: Vec<Candidate>,
    /// Index of the one that the asking thread would take.
    pub chosen: Option<usize>,
    /// The chosen one and those that are as good, of which each rank of a node takes its own.
    pub adapters: Adapters,
}

/// One offer of libfabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Provider, e.g. `tcp;ofi_rxm`.
    pub provider: String,
    /// Protocol, e.g. `XNET`.
    pub protocol: String,
    /// Endpoint type: `RDM`, `MSG` or `DGRAM`.
    pub endpoint: String,
    /// libfabric's name of the network.
    pub fabric: String,
    /// Adapter or interface.
    pub domain: String,
    /// Kind of address, e.g. `SOCKADDR_IN`.
    pub address_format: String,
    /// IP address that it would listen on.
    pub source: Option<String>,
    /// The adapter, as libfabric and the kernel know it.
    pub nic: Nic,
    /// Capabilities, separated by spaces.
    pub capabilities: String,
    /// Rules of memory registration, separated by spaces.
    pub mr_mode: String,
    /// Numbers.
    pub limits: CandidateLimits,
    /// Rank among the usable ones; 0 when rejected.
    pub score: i32,
    /// What is special about the provider.
    pub remark: &'static str,
    /// Chosen, or why not.
    pub verdict: Verdict,
}

/// A candidate's numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CandidateLimits {
    /// Largest batch by one tagged send, in bytes.
    pub eager_bytes: usize,
    /// Way for larger batches.
    pub mover: Mover,
    /// Largest send that is copied at once, in bytes.
    pub inject_bytes: usize,
    /// Largest single message, in bytes.
    pub max_message_bytes: usize,
    /// Sends and reads in flight, by default.
    pub transmit_depth: usize,
    /// Receives posted, by default.
    pub receive_depth: usize,
    /// Usable bits of a tag.
    pub tag_bits: u32,
    /// Size of a remote key, in bytes.
    pub mr_key_bytes: usize,
}

/// What became of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is taken.
    Chosen,
    /// It would do, but another one is better.
    Usable {
        /// Which one, and why.
        why_not: String,
    },
    /// It cannot, or must not, be taken.
    Rejected {
        /// Reason.
        why: String,
    },
}

/// Judges everything that libfabric has.
pub(super) fn survey(choice: &Choice) -> Result<Survey> {
    let usable: Vec<&Description> = usable_offers(choice)?
        .iter()
        .map(|offer| &offer.description)
        .collect();
    let ranks = info::rank(&usable, choice);
    let adapters = Adapters::of(&usable, &ranks, choice);
    let chosen = adapters.own(choice);
    let mut candidates: Vec<Candidate> = usable
        .iter()
        .zip(&ranks)
        .enumerate()
        .map(|(i, (description, rank))| {
            let (verdict, score) = match rank {
                Rank::Rejected(why) => (Verdict::Rejected { why: why.clone() }, 0),
                Rank::Score(score) => (judged(i, chosen, &adapters, &usable), *score),
            };
            candidate(description, score, choice, verdict)
        })
        .collect();
    for offer in all_offers()? {
        let description = &offer.description;
        if !usable.iter().any(|known| same_place(known, description)) {
            let why = unmet_need(description);
            candidates.push(candidate(description, 0, choice, Verdict::Rejected { why }));
        }
    }
    // SAFETY: fi_version takes nothing and only returns a constant of the library.
    let library = unsafe { sys::fi_version() };
    let spelled = |version: u32| format!("{}.{}", sys::FI_MAJOR(version), sys::FI_MINOR(version));
    Ok(Survey {
        library_version: spelled(library),
        header_version: spelled(info::API_VERSION),
        candidates,
        chosen,
        adapters,
    })
}

/// One line per provider and reason, for the error when nothing is usable.
pub(super) fn why_none(choice: &Choice) -> Result<String> {
    let mut reasons: Vec<String> = Vec::new();
    for candidate in survey(choice)?.candidates {
        if let Verdict::Rejected { why } = candidate.verdict {
            let reason = format!(
                "{} ({}, {}): {why}",
                candidate.provider, candidate.endpoint, candidate.domain
            );
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
    }
    if reasons.is_empty() {
        return Ok(
            "libfabric lists nothing at all; check FI_PROVIDER and that a network interface is up"
                .to_owned(),
        );
    }
    Ok(reasons.join("; "))
}

/// What becomes of a candidate that would do.
fn judged(
    index: usize,
    chosen: Option<usize>,
    adapters: &Adapters,
    usable: &[&Description],
) -> Verdict {
    let why_not = match chosen {
        Some(best) if best != index => match adapters.aside(index) {
            Some(why) => format!("{why}, and another adapter will do"),
            None if adapters.candidates.contains(&index) => {
                "other ranks of this node take it".to_owned()
            }
            None => lost_to(usable[index], usable[best]),
        },
        _ => return Verdict::Chosen,
    };
    Verdict::Usable { why_not }
}

fn lost_to(loser: &Description, winner: &Description) -> String {
    if loser.provider != winner.provider || loser.protocol != winner.protocol {
        return format!("{} scores higher", winner.provider);
    }
    match (loser.source, winner.source) {
        (Some(address), _) if address.is_loopback() => {
            "a loopback address, which no other node can reach".to_owned()
        }
        (Some(std::net::IpAddr::V6(address)), _) if address.is_unicast_link_local() => {
            "a link-local address, which only its own link can reach".to_owned()
        }
        _ => format!("same provider, {} comes first", winner.label()),
    }
}

fn candidate(
    description: &Description,
    score: i32,
    choice: &Choice,
    verdict: Verdict,
) -> Candidate {
    let d = description.clone();
    let nic = d.nic(&Sysfs::default());
    let quirk = quirks::lookup(&d.provider, &d.protocol);
    Candidate {
        provider: d.provider,
        protocol: d.protocol,
        endpoint: d.endpoint,
        fabric: d.fabric,
        domain: d.domain,
        address_format: d.address_format,
        source: d.source.map(|address| address.to_string()),
        nic,
        capabilities: names_of(d.capabilities, sys::FI_TYPE_CAPS, "FI_"),
        mr_mode: names_of(d.mr_mode, sys::FI_TYPE_MR_MODE, "FI_MR_"),
        limits: CandidateLimits {
            eager_bytes: choice
                .eager_bytes
                .unwrap_or(quirk.eager_bytes)
                .min(d.max_message_bytes),
            mover: choice.mover.unwrap_or(quirk.mover),
            inject_bytes: d.inject_bytes,
            max_message_bytes: d.max_message_bytes,
            transmit_depth: d.transmit_depth,
            receive_depth: d.receive_depth,
            tag_bits: d.tag_bits,
            mr_key_bytes: d.mr_key_bytes,
        },
        score,
        remark: quirk.why,
        verdict,
    }
}

/// Whether two descriptions are of the same thing, asked for with different hints.
fn same_place(a: &Description, b: &Description) -> bool {
    a.provider == b.provider
        && a.protocol == b.protocol
        && a.endpoint == b.endpoint
        && a.domain == b.domain
        && a.source == b.source
}

/// Which of our needs an offer fails, seen from its own description.
fn unmet_need(offer: &Description) -> String {
    if offer.endpoint != "RDM" {
        return format!("endpoint type {}, RDM needed", offer.endpoint);
    }
    let quirk = quirks::lookup(&offer.provider, &offer.protocol);
    if !quirk.usable {
        return quirk.why.to_owned();
    }
    let missing = CAPABILITIES & !offer.capabilities;
    if missing != 0 {
        return format!("lacks {}", names_of(missing, sys::FI_TYPE_CAPS, "FI_"));
    }
    let rules = offer.mr_mode & !MR_MODES;
    if rules != 0 {
        return format!(
            "registers memory only with {}",
            names_of(rules, sys::FI_TYPE_MR_MODE, "FI_MR_")
        );
    }
    let modes = offer.mode & !MODES;
    if modes != 0 {
        return format!(
            "asks its callers for {}",
            names_of(modes, sys::FI_TYPE_MODE, "FI_")
        );
    }
    "does not combine tagged messages, reads, FI_THREAD_DOMAIN and manual progress".to_owned()
}
