//! `tofu sim`, in one process or several.

use clap::Args;
use tofu_cables::Rounds;
use tofu_sim::{Common, Part, SimArgs};
use tofu_supervisor::parts;

use crate::commands::joining::JoinArgs;

/// What parts call what they run: no machine that could be met by mistake.
const NAME: &str = "simulation";

#[derive(Debug, Clone, Args)]
pub(crate) struct SimCommand {
    #[command(flatten)]
    sim: SimArgs,

    #[command(flatten)]
    join: JoinArgs,
}

/// Runs `tofu sim` and returns the exit code.
pub(crate) fn run(args: &SimCommand) -> anyhow::Result<u8> {
    let Some((own, dir)) = args.join.asked() else { return tofu_sim::run(&args.sim, None) };
    let mut rounds = None;
    let meet = |common: &Common<'_>| {
        let same = [
            ("scenario", parts::fingerprint(common.text.as_bytes())),
            ("--threads", common.threads.to_string()),
        ];
        let same = same.map(|(name, value)| (name.to_owned(), value)).into();
        let joining = parts::join(dir, NAME, same, own)?;
        let all = rounds.insert(Rounds::new(args.join.meet(joining, own, false)?)?).clone();
        let exchange = Box::new(move || Box::new(all.clone()) as _);
        Ok(Part { own: own.part.0.into(), of: own.of, exchange })
    };
    let code = tofu_sim::run(&args.sim, Some(Box::new(meet)));
    if let Some(rounds) = rounds {
        rounds.leave();
    }
    code
}
