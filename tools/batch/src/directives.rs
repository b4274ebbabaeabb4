//! The lines of a job script that have options for `pjsub`.

/// A line with options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directive {
    /// Its number, from 1.
    pub(crate) line: usize,
    /// Its words behind the prefix.
    pub(crate) words: Vec<String>,
    /// True if a command comes before it.
    pub(crate) late: bool,
}

/// A line with a quote that is not closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unquoted {
    pub(crate) line: usize,
}

/// Returns the lines of a script that begin with `prefix`. Those in here-documents are for other
/// scripts, which this one writes.
pub(crate) fn find(script: &str, prefix: &str) -> Result<Vec<Directive>, Unquoted> {
    let mut found = Vec::new();
    let mut late = false;
    let mut until: Option<(String, bool)> = None;
    for (number, text) in script.lines().enumerate() {
        let line = number + 1;
        if let Some((end, tabs)) = &until {
            let text = if *tabs { text.trim_start_matches('\t') } else { text };
            if text.trim_end() == end {
                until = None;
            }
            continue;
        }
        let rest = text.strip_prefix(prefix).filter(|rest| rest.starts_with([' ', '\t']));
        if let Some(rest) = rest {
            let words = split(rest).ok_or(Unquoted { line })?;
            found.push(Directive { line, words, late });
            continue;
        }
        let code = text.trim_start();
        if !code.is_empty() && !code.starts_with('#') {
            late = true;
            until = here_document(code);
        }
    }
    Ok(found)
}

/// Returns the word that ends a here-document which begins on this line, and whether tabs may be
/// in front of it.
fn here_document(code: &str) -> Option<(String, bool)> {
    let behind = code.split_once("<<").map(|(_, behind)| behind)?;
    if behind.starts_with('<') {
        return None;
    }
    let (tabs, behind) = match behind.strip_prefix('-') {
        Some(behind) => (true, behind),
        None => (false, behind),
    };
    let word: String = behind
        .trim_start()
        .chars()
        .take_while(|c| !c.is_whitespace() && !";|&)>".contains(*c))
        .filter(|c| !"'\"\\".contains(*c))
        .collect();
    // Otherwise it is a shift: a number, or a variable in an arithmetic expression.
    let is_word = word.starts_with(|c: char| c.is_alphabetic() || "_!".contains(c));
    is_word.then_some((word, tabs))
}

/// Splits a line into words as a shell does, with quotes and a comment at its end. `None` if a
/// quote is not closed.
pub(crate) fn split(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '#' if word.is_none() => break,
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        end if end == c => break,
                        '\\' if c == '"' => word.push(chars.next()?),
                        other => word.push(other),
                    }
                }
            }
            '\\' => word.get_or_insert_default().extend(chars.next()),
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(script: &str) -> Vec<(usize, bool, Vec<String>)> {
        let found = find(script, "#PJM").unwrap();
        found.into_iter().map(|found| (found.line, found.late, found.words)).collect()
    }

    #[test]
    fn lines_are_split_as_by_a_shell() {
        let script = "#!/bin/sh\n#PJM -L \"node=2,elapse=1:00\" # two\n##PJM -j\n# PJM -s\n\
                      #PJMX -s\n\n#PJM\t--mpi 'a b'\"c\\\"\"\\ d\n#PJM \"\"\n";
        let expected = [
            (2, false, vec!["-L".to_owned(), "node=2,elapse=1:00".to_owned()]),
            (7, false, vec!["--mpi".to_owned(), "a bc\" d".to_owned()]),
            (8, false, vec![String::new()]),
        ];
        assert_eq!(words(script), expected);
        assert_eq!(find("echo\n#PJM -L \"node=2\n", "#PJM"), Err(Unquoted { line: 2 }));
        assert_eq!(find("#X -j", "#X").unwrap().len(), 1);
    }

    #[test]
    fn lines_behind_commands_are_late() {
        let script = "export A=1\n#PJM -s\ncat <<-'END' > job.sh\n#PJM -L node=9\n\tEND\n#PJM -j\n\
                      (( a << 2 ))\n#PJM -X\nread x <<< y\n#PJM -x A\n";
        let lines: Vec<_> = words(script).into_iter().map(|(line, late, _)| (line, late)).collect();
        assert_eq!(lines, [(2, true), (6, true), (8, true), (10, true)]);
    }

    proptest! {
        #[test]
        fn any_text_is_read(script in "(#PJM |<<|['\"\\\\#\n\tEA -]|\\PC){0,80}") {
            if let Ok(found) = find(&script, "#PJM") {
                let lines = script.lines().count();
                prop_assert!(found.iter().all(|found| (1..=lines).contains(&found.line)));
            }
        }

        #[test]
        fn quoted_words_are_what_they_were(words in prop::collection::vec("[^'\n\r]{0,12}", 0..5)) {
            let line: String = words.iter().map(|word| format!(" '{word}'")).collect();
            prop_assert_eq!(split(&line), Some(words));
        }
    }
}
