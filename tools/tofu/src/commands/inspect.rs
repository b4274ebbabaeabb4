//! `tofu inspect`: the live state of a node's device.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use tofu_control::protocol::{InspectRequest, Reply, Request, TranslateRequest};
use tofu_control::{ask, locate, node_number};
use tofu_inspect::Value;
use tofu_spec::units::Timeout;
use tofu_ui::printable;

/// Show the live state of a node's device as a tree
///
/// The host reads the state without the guest, which keeps running: PCI configuration and MSI-X,
/// network interfaces, control queues with the commands in flight and the waiting ones, tables,
/// barrier gates and channels, packet queues, interrupts, ports. Each queue is shown at one moment;
/// the moments of two queues may differ.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    /// Node: an index, coordinates X,Y,Z,A,B,C or a name t-X-Y-Z-A-B-C, with MACHINE/ in front if
    /// several machines run
    #[arg(value_name = "NODE")]
    pub(crate) node: String,

    /// Part to show, such as device/tni/0/cq/3/completions or pci/msix [default: all]
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<String>,

    /// Number of levels to show; deeper ones are shown as three dots
    #[arg(long, value_name = "N")]
    pub(crate) depth: Option<u32>,

    /// Maximum number of values to show
    #[arg(long, value_name = "N", default_value_t = InspectRequest::limit())]
    pub(crate) limit: u32,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Repeat at this interval, such as 500ms
    #[arg(long, value_name = "TIME", num_args = 0..=1)]
    #[arg(default_missing_value = "1s")]
    #[arg(conflicts_with = "diff")]
    pub(crate) watch: Option<Timeout>,

    /// Show what has changed since this file, an output of --json
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub(crate) diff: Option<PathBuf>,

    /// Walk through the tables of a control queue, from an STag and an offset to memory
    #[arg(long, num_args = 2, value_names = ["TNI/CQ", "STAG:OFFSET"])]
    #[arg(conflicts_with_all = ["path", "depth", "diff", "watch"])]
    pub(crate) translate: Option<Vec<String>>,

    /// Number of bytes to translate
    #[arg(long, value_name = "BYTES", default_value_t = 1, requires = "translate")]
    pub(crate) length: u32,

    /// Translate as for a write
    #[arg(long, requires = "translate")]
    pub(crate) write: bool,
}

const EXAMPLES: &str = "\
Examples:
  tofu inspect 0 --depth 3
  tofu inspect 0 device/tni/0/cq/3
      a control queue: registers, rings, commands in flight and waiting, tables
  tofu inspect 0 device/tni/0 --json > before
  tofu inspect 0 --diff before
      what has changed since
  tofu inspect 0 --translate 0/3 0x2:0x100 --length 4096 --write
      the entries of the tables, and the result code with its reason";

/// The output of --json.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Snapshot {
    /// Number of the node.
    node: u32,
    path: String,
    /// Nothing was left out because of the limit.
    complete: bool,
    tree: Value,
}

/// Runs `tofu inspect` and returns the exit code.
pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<u8> {
    let before = args.diff.as_deref().map(read).transpose()?;
    let (control, shape, at) = locate(&args.node)?;
    let node = node_number(&shape, at)?;
    let path = args.path.as_deref().unwrap_or_default().trim_matches('/').to_owned();
    let mut path = path;
    if let Some(before) = &before {
        if before.node != node {
            bail!("the file is about node {}, not {node}", before.node);
        }
        match &args.path {
            None => path.clone_from(&before.path),
            Some(_) if path != before.path => {
                bail!("the file is about {:?}, not {path:?}", before.path)
            }
            Some(_) => {}
        }
    }
    let request = match &args.translate {
        Some(words) => Request::Translate(translation(node, words, args)?),
        None => Request::Inspect(InspectRequest {
            node,
            path: path.clone(),
            depth: args.depth.unwrap_or(InspectRequest::depth()),
            limit: args.limit,
        }),
    };
    let mut out = io::stdout().lock();
    loop {
        let Reply::Inspection { tree, complete } = ask(&control, &request)? else {
            bail!("not an answer")
        };
        let Some(tree) = tree else {
            bail!("node {}: there is no device at this place", args.node)
        };
        let now = Snapshot { node, path: path.clone(), complete, tree };
        if args.watch.is_some() && !args.json && out.is_terminal() {
            // To the top of an empty screen.
            write!(out, "\x1b[H\x1b[2J")?;
        }
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&now)?)?;
        } else if let Some(before) = &before {
            changes(&mut out, &now.path, &before.tree, &now.tree)?;
        } else {
            let name = if now.path.is_empty() { "node".to_owned() } else { now.path.clone() };
            show(&mut out, 0, &printable(&name), &now.tree)?;
        }
        out.flush()?;
        if !now.complete {
            tofu_ui::tell!(
                "tofu: there are more than --limit {} values; the rest is left out",
                args.limit
            );
        }
        match args.watch {
            Some(Timeout(time)) => thread::sleep(time.max(Duration::from_millis(10))),
            None => return Ok(0),
        }
    }
}

fn read(file: &Path) -> anyhow::Result<Snapshot> {
    let cannot = || format!("cannot read {}", file.display());
    let text = tofu_input::read_text(file, tofu_input::RECORD).with_context(cannot)?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not what tofu inspect --json prints", file.display()))
}

/// The address of `--translate`.
fn translation(
    node: u32,
    words: &[String],
    args: &InspectArgs,
) -> anyhow::Result<TranslateRequest> {
    let [queue, address] = words else { bail!("--translate has two values") };
    let number = |text: &str| {
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        parsed.ok()
    };
    let pair = |text: &str, between| {
        let (a, b) = text.split_once(between)?;
        Some((number(a)?, number(b)?))
    };
    let parsed =
        pair(queue, '/').and_then(|(tni, cq)| Some((tni.try_into().ok()?, cq.try_into().ok()?)));
    let (tni, cq) =
        parsed.with_context(|| format!("--translate {queue:?}: a TNI and a CQ, such as 0/3"))?;
    let parsed =
        pair(address, ':').and_then(|(stag, offset)| Some((u32::try_from(stag).ok()?, offset)));
    let (stag, offset) =
        parsed.with_context(|| format!("{address:?}: an STag and an offset, such as 0x2:0x100"))?;
    let InspectArgs { length, write, .. } = *args;
    Ok(TranslateRequest { node, tni, cq, stag, offset, length, write })
}

/// Columns of a tree that is shown in one line.
const WIDTH: usize = 96;

fn leaf(value: &Value) -> Option<String> {
    Some(match value {
        Value::None => "-".to_owned(),
        Value::Flag(flag) => if *flag { "yes" } else { "no" }.to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Text(text) => printable(text),
        Value::Tree(_) => return None,
    })
}

/// Leaves of the tree, in one line if they fit.
fn on_one_line(indent: usize, name: &str, parts: &[(String, Value)]) -> Option<String> {
    let words = parts.iter().map(|(name, value)| {
        let value = leaf(value).filter(|value| !value.contains(' '))?;
        Some(format!("{}={value}", printable(name)))
    });
    let words: Option<Vec<_>> = words.collect();
    let line = format!("{:indent$}{name}: {}", "", words?.join(" "));
    (line.chars().count() <= WIDTH).then_some(line)
}

fn show(out: &mut dyn Write, indent: usize, name: &str, value: &Value) -> io::Result<()> {
    let Value::Tree(parts) = value else {
        return writeln!(out, "{:indent$}{name}: {}", "", leaf(value).unwrap_or_default());
    };
    if parts.is_empty() {
        return writeln!(out, "{:indent$}{name}: none", "");
    }
    if let Some(line) = on_one_line(indent, name, parts) {
        return writeln!(out, "{}", line.trim_end());
    }
    writeln!(out, "{:indent$}{name}:", "")?;
    parts.iter().try_for_each(|(name, part)| show(out, indent + 2, &printable(name), part))
}

/// Prints the differences, one per line.
fn changes(out: &mut dyn Write, at: &str, before: &Value, now: &Value) -> io::Result<()> {
    let (Value::Tree(old), Value::Tree(new)) = (before, now) else {
        if before != now {
            return match (leaf(before), leaf(now)) {
                (Some(before), Some(now)) => writeln!(out, "  {at}: {before} -> {now}"),
                _ => only(out, '-', at, before).and_then(|()| only(out, '+', at, now)),
            };
        }
        return Ok(());
    };
    let below = |name: &str| match at {
        "" => printable(name),
        at => format!("{at}/{}", printable(name)),
    };
    let find =
        |parts: &[(String, Value)], name: &str| parts.iter().position(|(other, _)| other == name);
    for (name, value) in old {
        match find(new, name) {
            Some(n) => changes(out, &below(name), value, &new[n].1)?,
            None => only(out, '-', &below(name), value)?,
        }
    }
    for (name, value) in new.iter().filter(|(name, _)| find(old, name).is_none()) {
        only(out, '+', &below(name), value)?;
    }
    Ok(())
}

/// Prints a value that exists on one side only.
fn only(out: &mut dyn Write, sign: char, at: &str, value: &Value) -> io::Result<()> {
    match value {
        Value::Tree(parts) => parts.iter().try_for_each(|(name, part)| {
            only(out, sign, &format!("{at}/{}", printable(name)), part)
        }),
        value => writeln!(out, "{sign} {at}: {}", leaf(value).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    fn shown(value: &Value) -> String {
        let mut out = Vec::new();
        show(&mut out, 0, "node", value).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn small_trees_are_one_line_and_escaped() {
        let value = tree(
            r#"{"ring":{"slot":3,"flip":true},"none":null,"empty":{},
                "words":{"a":"two words","b":1},
                "evil\u001b[31m":"\u001b]0;x\u0007\n"}"#,
        );
        let lines = [
            "node:",
            "  ring: slot=3 flip=yes",
            "  none: -",
            "  empty: none",
            "  words:",
            "    a: two words",
            "    b: 1",
            "  evil\u{fffd}[31m: \u{fffd}]0;x\u{fffd}\u{fffd}",
        ];
        assert_eq!(shown(&value).lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn changes_are_named_by_their_paths() {
        let before = tree(r#"{"a":{"x":1,"y":2},"gone":{"z":true},"kind":1}"#);
        let now = tree(r#"{"a":{"x":1,"y":3,"new":"n"},"kind":{"k":1}}"#);
        let mut out = Vec::new();
        changes(&mut out, "", &before, &now).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "  a/y: 2 -> 3\n+ a/new: n\n- gone/z: yes\n- kind: 1\n+ kind/k: 1\n");
        let mut out = Vec::new();
        changes(&mut out, "", &now, &now).unwrap();
        assert_eq!(out, b"");
    }
}
