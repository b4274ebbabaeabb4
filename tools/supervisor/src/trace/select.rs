//! The user's selection of commands.

use anyhow::{Context, bail};
use tofu_abi::desc::Command;
use tofu_abi::{CqId, Rcode, TniId};
use tofu_control::protocol::{TraceRequest, TracedCommand};

/// Kinds of commands, as users name them.
const KINDS: [(&str, &[Command]); 5] = [
    ("put", &[Command::Put, Command::PutPiggyback]),
    ("get", &[Command::Get, Command::GetL]),
    ("atomic", &[Command::AtomicReadModifyWrite]),
    (
        "packet",
        &[
            Command::TransmitRawPacket1,
            Command::TransmitRawPacket2,
            Command::TransmitSystemPacket1,
            Command::TransmitSystemPacket2,
        ],
    ),
    ("other", &[Command::Nop, Command::WritePiggybackBuffer]),
];

/// The commands that are wanted. An empty list means everything.
#[derive(Debug)]
pub(crate) struct Selection {
    nodes: Vec<u32>,
    queues: Vec<(TniId, Option<CqId>)>,
    kinds: Vec<&'static str>,
    results: Vec<Wanted>,
}

#[derive(Debug)]
enum Wanted {
    Success,
    Failed,
    Code(Rcode),
}

impl Selection {
    /// Returns the selection that a client asks for.
    ///
    /// # Errors
    ///
    /// One line that names what is allowed.
    pub(crate) fn of(request: &TraceRequest) -> anyhow::Result<Self> {
        let queues = request.queues.iter().map(|text| {
            let (tni, cq) = text.split_once('/').map_or((&**text, None), |(a, b)| (a, Some(b)));
            let tni = unit(tni, TniId::new)?;
            let cq = cq.map(|cq| unit(cq, CqId::new)).transpose()?;
            Ok((tni, cq))
        });
        let kinds = request.kinds.iter().map(|text| {
            let kind = KINDS.iter().find(|(name, _)| name == text).map(|(name, _)| *name);
            kind.with_context(|| {
                format!("kind {text:?}: kinds are put, get, atomic, packet and other")
            })
        });
        let results = request.results.iter().map(|text| result(text));
        Ok(Self {
            nodes: request.nodes.clone(),
            queues: queues.collect::<anyhow::Result<_>>()?,
            kinds: kinds.collect::<anyhow::Result<_>>()?,
            results: results.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Returns whether commands of a node may be wanted.
    pub(crate) fn has_node(&self, node: u32) -> bool {
        self.nodes.is_empty() || self.nodes.contains(&node)
    }

    /// Returns whether a command is wanted. `code` is the one in its descriptor.
    pub(crate) fn has(&self, command: &TracedCommand, code: u8) -> bool {
        let in_queue = |(tni, cq): &(TniId, Option<CqId>)| {
            tni.get() == command.tni && cq.is_none_or(|cq| cq.get() == command.cq)
        };
        let rcode = Rcode::new(command.rcode);
        let of_result = |wanted: &Wanted| match wanted {
            Wanted::Success => rcode.is_success(),
            Wanted::Failed => !rcode.is_success(),
            Wanted::Code(code) => rcode == *code,
        };
        self.has_node(command.node)
            && (self.queues.is_empty() || self.queues.iter().any(in_queue))
            && (self.kinds.is_empty() || self.kinds.contains(&kind(code)))
            && (self.results.is_empty() || self.results.iter().any(of_result))
    }
}

/// Returns the kind of a command from its code; `other` for unknown codes.
fn kind(code: u8) -> &'static str {
    let of = |(_, commands): &&(&str, &[Command])| commands.iter().any(|c| *c as u8 == code);
    KINDS.iter().find(of).map_or("other", |(name, _)| name)
}

/// Returns the unit of a queue's name, whose number `new` checks.
fn unit<T>(text: &str, new: fn(u8) -> Option<T>) -> anyhow::Result<T> {
    text.parse().ok().and_then(new).with_context(|| {
        format!("queue {text:?}: a queue is TNI/CQ, such as 0/3, or a TNI, such as 0")
    })
}

fn result(text: &str) -> anyhow::Result<Wanted> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let named = || Rcode::ALL.iter().find(|(_, name, _)| *name == text).map(|(code, ..)| *code);
    match text {
        "success" => Ok(Wanted::Success),
        "failed" => Ok(Wanted::Failed),
        _ => match number.map(Rcode::new).or_else(named) {
            Some(code) => Ok(Wanted::Code(code)),
            None => bail!(
                "result {text:?}: results are success, failed, the number of a code, such as 0x33, \
                 or its name, such as LINK_DOWN"
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(queues: &[&str], kinds: &[&str], results: &[&str]) -> TraceRequest {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        TraceRequest {
            queues: owned(queues),
            kinds: owned(kinds),
            results: owned(results),
            ..TraceRequest::default()
        }
    }

    #[test]
    fn forbidden_selections_are_reported() {
        for (request, expected) in [
            (request(&["6"], &[], &[]), "queue \"6\": a queue is TNI/CQ"),
            (request(&["0/12"], &[], &[]), "queue \"12\": a queue is TNI/CQ"),
            (request(&[], &["puts"], &[]), "kind \"puts\": kinds are put"),
            (request(&[], &[], &["bad"]), "result \"bad\": results are success"),
            (request(&[], &[], &["0x100"]), "result \"0x100\": results are"),
        ] {
            let error = Selection::of(&request).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn codes_have_names_and_numbers() {
        let of = |text| match result(text).unwrap() {
            Wanted::Code(code) => code,
            other => panic!("{other:?}"),
        };
        assert_eq!((of("LINK_DOWN"), of("0x50")), (Rcode::LINK_DOWN, Rcode::LINK_DOWN));
        assert_eq!((kind(Command::GetL as u8), kind(0xff)), ("get", "other"));
    }
}
