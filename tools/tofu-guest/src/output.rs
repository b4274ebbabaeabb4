//! Output of commands' results.

use std::io::{self, Write};

use clap::Args;
use serde_json::{Map, Value};
use tofu_abi::regs::PortReg;

#[derive(Args)]
pub(crate) struct Output {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Output {
    /// Prints `value` as JSON, or else calls `text`.
    pub(crate) fn print(
        &self,
        value: &Value,
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        let written = if self.json { writeln!(out, "{value}") } else { text(&mut out) };
        match written.and_then(|()| out.flush()) {
            // The reader has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => Ok(other?),
        }
    }
}

/// Names and values of some registers, under a headline.
pub(crate) struct Block {
    pub(crate) name: String,
    pub(crate) values: Vec<(String, u64)>,
}

impl Block {
    fn json(blocks: &[Self], value: impl Fn(u64) -> Value) -> Value {
        let block = |block: &Self| {
            let values = block.values.iter().map(|(name, v)| (name.clone(), value(*v)));
            (block.name.clone(), Value::Object(values.collect()))
        };
        Value::Object(blocks.iter().map(block).collect::<Map<_, _>>())
    }

    fn print(
        blocks: &[Self],
        out: &mut dyn Write,
        value: impl Fn(u64) -> String,
    ) -> io::Result<()> {
        for (i, block) in blocks.iter().enumerate() {
            writeln!(out, "{}{}", if i > 0 { "\n" } else { "" }, block.name)?;
            for (name, number) in &block.values {
                writeln!(out, "  {name:32} {}", value(*number))?;
            }
        }
        Ok(())
    }

    /// Registers, in hexadecimal.
    pub(crate) fn print_registers(blocks: &[Self], output: &Output) -> anyhow::Result<()> {
        // As text: JSON's numbers do not hold 64 bits everywhere.
        let value = Self::json(blocks, |v| Value::from(format!("{v:#x}")));
        output.print(&value, |out| Self::print(blocks, out, |v| format!("{v:#018x}")))
    }

    /// Counters: all, or those that are not 0.
    pub(crate) fn print_counters(
        mut blocks: Vec<Self>,
        all: bool,
        output: &Output,
    ) -> anyhow::Result<()> {
        if !all {
            let clock = PortReg::FreeRunCount.name();
            for block in &mut blocks {
                block.values.retain(|(name, value)| *value != 0 && name != clock);
            }
            blocks.retain(|block| !block.values.is_empty());
        }
        output.print(&Self::json(&blocks, Value::from), |out| {
            if blocks.is_empty() {
                return writeln!(out, "all counters are 0; the device counts while it is in use");
            }
            Self::print(&blocks, out, |v| v.to_string())
        })
    }
}
