//! Slurm's information for the tasks of a job: the shard of each task, and the hosts of all tasks.

use anyhow::{Context, bail, ensure};
use tofu_abi::decimal;
use tofu_fabric::{ShardId, Shards};
use tofu_spec::units::ShardOf;

/// Variables of the environment, by name.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Those of this process.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(variables: Variables<'_>, name: &str) -> anyhow::Result<u32> {
    let text = variables(name).with_context(|| {
        format!("{name} is not set; slurm is for tasks of a Slurm job: srun tofu up --shard slurm")
    })?;
    decimal(&text).with_context(|| format!("{name}={text}: not a number"))
}

/// The shard of this task.
///
/// # Errors
///
/// If this is not a task of Slurm, or the job has more tasks than a machine can have shards.
pub(crate) fn shard(variables: Variables<'_>) -> anyhow::Result<ShardOf> {
    let (task, tasks) = (number(variables, "SLURM_PROCID")?, number(variables, "SLURM_NTASKS")?);
    ensure!(
        tasks <= Shards::MOST,
        "SLURM_NTASKS={tasks}: a machine has {} shards at most",
        Shards::MOST
    );
    ensure!(task < tasks, "SLURM_PROCID={task}: it has to be less than SLURM_NTASKS={tasks}");
    Ok(ShardOf { shard: ShardId(task as u16), of: tasks })
}

/// The addresses at which the shards of a job listen, one for each task. Those on one node have
/// consecutive ports from this one on. Tasks are taken to fill one node after the other, as with
/// `--distribution=block`.
///
/// # Errors
///
/// If this is not in a job, or the variables are not as Slurm sets them.
pub(crate) fn addresses(variables: Variables<'_>, port: u16) -> anyhow::Result<Vec<String>> {
    let list = variables("SLURM_JOB_NODELIST").context(
        "SLURM_JOB_NODELIST is not set; `tofu hosts init --slurm` is for batch scripts of Slurm",
    )?;
    let nodes = nodes(&list).with_context(|| format!("SLURM_JOB_NODELIST={list}"))?;
    let of_nodes = match variables("SLURM_TASKS_PER_NODE") {
        Some(text) => counts(&text).with_context(|| format!("SLURM_TASKS_PER_NODE={text}"))?,
        None => vec![1; nodes.len()],
    };
    ensure!(
        of_nodes.len() == nodes.len(),
        "SLURM_TASKS_PER_NODE is for {} nodes, and SLURM_JOB_NODELIST={list} has {}",
        of_nodes.len(),
        nodes.len()
    );
    let mut addresses = Vec::new();
    for (node, tasks) in nodes.iter().zip(of_nodes) {
        for task in 0..tasks {
            ensure!(addresses.len() < Shards::MOST as usize, "more tasks than {}", Shards::MOST);
            let port = u16::try_from(u32::from(port) + task).ok();
            let port = port.with_context(|| format!("{tasks} tasks on {node}: no ports left"))?;
            addresses.push(format!("{node}:{port}"));
        }
    }
    Ok(addresses)
}

/// Numbers of tasks such as `2(x3),1`: for each node.
fn counts(text: &str) -> anyhow::Result<Vec<u32>> {
    let mut counts = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.strip_suffix(')').and_then(|part| part.split_once("(x")) {
            Some((count, times)) => (decimal::<u32>(count), decimal::<u32>(times)),
            None => (decimal(part), Some(1)),
        };
        let (count, times) = count.zip(times).context("not numbers of tasks, such as 2(x3),1")?;
        ensure!(counts.len() + times as usize <= Shards::MOST as usize, "too many nodes");
        counts.extend((0..times).map(|_| count));
    }
    Ok(counts)
}

/// The nodes of a list such as `login,n[1-3,7],rack[01-02]n[1-2]`.
fn nodes(list: &str) -> anyhow::Result<Vec<String>> {
    let mut nodes = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in list.char_indices().chain([(list.len(), ',')]) {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                expand(String::new(), &list[start..at], &mut nodes)?;
                start = at + 1;
            }
            _ => {}
        }
    }
    ensure!(depth == 0, "a [ without its ]");
    Ok(nodes)
}

/// All names that begin with `first` and continue with one of `rest`.
fn expand(first: String, rest: &str, to: &mut Vec<String>) -> anyhow::Result<()> {
    let Some((before, after)) = rest.split_once('[') else {
        let name = first + rest;
        ensure!(!name.is_empty(), "a node without a name");
        ensure!(to.len() < Shards::MOST as usize, "more than {} nodes", Shards::MOST);
        to.push(name);
        return Ok(());
    };
    let (ranges, after) = after.split_once(']').context("a [ without its ]")?;
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let Some((from, until)) = decimal::<u32>(low).zip(decimal::<u32>(high)) else {
            bail!("[{ranges}]: not numbers and ranges of them");
        };
        let most = from.saturating_add(Shards::MOST);
        ensure!(from <= until && until < most, "[{range}]: not a range of nodes");
        for number in from..=until {
            // With as many digits as the first number has.
            let name = format!("{first}{before}{number:0width$}", width = low.len());
            expand(name, after, to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(set: &[(&str, &str)], ask: &dyn Fn(Variables<'_>) -> String) -> String {
        ask(&|name| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn shard_of(set: &[(&str, &str)]) -> String {
        with(set, &|vars| match shard(vars) {
            Ok(shard) => shard.to_string(),
            Err(error) => format!("{error:#}"),
        })
    }

    #[test]
    fn task_is_a_shard() {
        assert_eq!(shard_of(&[("SLURM_PROCID", "3"), ("SLURM_NTASKS", "4")]), "3/4");
        for (set, why) in [
            (&[][..], "SLURM_PROCID is not set"),
            (&[("SLURM_PROCID", "4"), ("SLURM_NTASKS", "4")], "has to be less"),
            (&[("SLURM_PROCID", "x"), ("SLURM_NTASKS", "4")], "SLURM_PROCID=x: not a number"),
            (&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "5000")], "4096 shards at most"),
        ] {
            assert!(shard_of(set).contains(why), "{set:?}: {}", shard_of(set));
        }
    }

    #[test]
    fn tasks_have_the_ports_of_their_nodes() {
        let of = |list: &str, tasks: &str| {
            let set = [("SLURM_JOB_NODELIST", list), ("SLURM_TASKS_PER_NODE", tasks)];
            with(&set, &|vars| match addresses(vars, 7700) {
                Ok(addresses) => addresses.join(" "),
                Err(error) => format!("{error:#}"),
            })
        };
        assert_eq!(of("n1,m[08-10]", "2,1(x3)"), "n1:7700 n1:7701 m08:7700 m09:7700 m10:7700");
        assert_eq!(of("r[1-2]n[3,5]", "1(x4)"), "r1n3:7700 r1n5:7700 r2n3:7700 r2n5:7700");
        for (list, tasks, why) in [
            ("n[1-2", "1(x2)", "a [ without its ]"),
            ("n]1[", "1", "a [ without its ]"),
            ("n[2-1]", "1", "[2-1]: not a range of nodes"),
            ("n[1-4294967295]", "1", "not a range of nodes"),
            ("n[1-4000]m[1-4000]", "1", "more than 4096 nodes"),
            ("n[x]", "1", "not numbers"),
            ("n1,,n2", "1(x3)", "a node without a name"),
            ("n[1-2]", "1", "is for 1 nodes"),
            ("n1", "1(x9999999)", "too many nodes"),
            ("n1", "many", "not numbers of tasks"),
            ("n1", "60000", "more tasks than 4096"),
        ] {
            assert!(of(list, tasks).contains(why), "{list}: {}", of(list, tasks));
        }
    }
}
