//! Answers requests of browsers and programs by HTTP/1, one request per connection.
//!
//! It serves pages of a running machine, and is not a public web server: heads and bodies are
//! short, and a client that is slow or sends too much is dropped. The caller decides what is
//! served, and to whom.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Most bytes of a request's head, and fields in it.
const MAX_HEAD: usize = 8 << 10;
const MAX_FIELDS: usize = 64;
/// Most bytes of a request's body.
const MAX_BODY: usize = 4 << 10;
/// The time limit for a client in all.
const PATIENCE: Duration = Duration::from_secs(10);
/// Limits, in time and bytes, for data that a client sends after it has its answer.
const LINGER: Duration = Duration::from_secs(1);
const MAX_DRAIN: usize = 64 << 10;

/// Text without any marks.
pub const TEXT: &str = "text/plain; charset=utf-8";

/// A client's request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `HEAD`, `POST` and so on, as the client sent it.
    pub method: String,
    /// The path, without the query after a question mark.
    pub path: String,
    /// The query, after the question mark.
    pub query: String,
    /// The host, with its port, that the client believes to be connected to.
    pub host: Option<String>,
    /// The page from which a browser sends the request.
    pub origin: Option<String>,
    /// The body, at most 4 KiB.
    pub body: Vec<u8>,
}

impl Request {
    /// A value of the query by its name, not decoded.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.query
            .split('&')
            .find_map(|pair| pair.split_once('=').filter(|(n, _)| *n == name))
            .map(|(_, value)| value)
    }
}

/// An answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number and words.
    pub status: &'static str,
    /// The type of the body.
    pub kind: &'static str,
    /// More fields of the head, each with the end of its line.
    pub fields: Cow<'static, str>,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The request.
    pub fn good(kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status: "200 OK", kind, fields: "".into(), body: body.into() }
    }

    /// Sends a client to another path.
    pub fn moved(path: &str) -> Self {
        let fields = format!("Location: {path}\r\n").into();
        Self { fields, ..Self::refused("308 Permanent Redirect", path) }
    }

    /// A refusal: a line of text with the reason.
    pub fn refused(status: &'static str, why: &str) -> Self {
        let body = format!("{why}\n").into_bytes();
        Self { status, kind: TEXT, fields: "".into(), body }
    }
}

/// Answers one request and ends the connection.
///
/// # Errors
///
/// If the client has gone, or takes too long.
pub fn answer(mut client: TcpStream, respond: impl FnOnce(&Request) -> Answer) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let (answer, whole) = match read(&mut client, until)? {
        Ok(request) => (respond(&request), request.method != "HEAD"),
        Err(why) => (Answer::refused("400 Bad Request", why), true),
    };
    let Answer { status, kind, fields, body } = answer;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{fields}\
         Connection: close\r\n\r\n",
        body.len()
    );
    let mut all = head.into_bytes();
    if whole {
        all.extend_from_slice(&body);
    }
    // A client that reads very slowly does not keep others waiting.
    let mut rest = all.as_slice();
    while !rest.is_empty() {
        client.set_write_timeout(Some(left(until)?))?;
        let n = client.write(rest)?;
        rest = &rest[n..];
    }
    client.shutdown(Shutdown::Write)?;
    drain(&mut client, until.min(Instant::now() + LINGER))
}

/// Reads the rest of a client's data for a while: a connection that is closed earlier is reset, and
/// the answer may be lost with it.
fn drain(client: &mut TcpStream, until: Instant) -> io::Result<()> {
    let mut bytes = [0; 4096];
    for _ in 0..MAX_DRAIN / bytes.len() {
        client.set_read_timeout(Some(left(until)?))?;
        if client.read(&mut bytes)? == 0 {
            break;
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads a request. The inner error describes an invalid one.
fn read(client: &mut TcpStream, until: Instant) -> io::Result<Result<Request, &'static str>> {
    let mut bytes = Vec::new();
    let (mut request, body, length) = loop {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut head = httparse::Request::new(&mut fields);
        match head.parse(&bytes) {
            Ok(httparse::Status::Complete(at)) => match parsed(&head) {
                Ok((request, length)) => break (request, at, length),
                Err(why) => return Ok(Err(why)),
            },
            Ok(httparse::Status::Partial) if bytes.len() >= MAX_HEAD => {
                return Ok(Err("the request is too long"));
            }
            Ok(httparse::Status::Partial) => {}
            Err(_) => return Ok(Err("not a request of HTTP/1")),
        }
        more(client, &mut bytes, until)?;
    };
    if length > MAX_BODY {
        return Ok(Err("the request's body is too long"));
    }
    while bytes.len() < body + length {
        more(client, &mut bytes, until)?;
    }
    request.body = bytes[body..body + length].to_vec();
    Ok(Ok(request))
}

/// A head without its body, and the length of the body.
fn parsed(head: &httparse::Request<'_, '_>) -> Result<(Request, usize), &'static str> {
    let (method, target) = head.method.zip(head.path).ok_or("no request")?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        ..Request::default()
    };
    let mut length = 0;
    for field in &*head.headers {
        let value = std::str::from_utf8(field.value).map(str::trim);
        match field.name.to_ascii_lowercase().as_str() {
            // Two of them could be confused.
            "host" if request.host.is_some() => return Err("two fields Host"),
            "host" => request.host = value.ok().map(str::to_owned),
            "origin" => request.origin = Some(value.unwrap_or("?").to_owned()),
            "content-length" => {
                let value = value.ok().and_then(|value| value.parse().ok());
                length = value.ok_or("not a length")?;
            }
            "transfer-encoding" => return Err("the body has no length"),
            _ => {}
        }
    }
    Ok((request, length))
}

fn more(client: &mut TcpStream, bytes: &mut Vec<u8>, until: Instant) -> io::Result<()> {
    client.set_read_timeout(Some(left(until)?))?;
    let mut more = [0; 1024];
    match client.read(&mut more)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        n => {
            bytes.extend_from_slice(&more[..n]);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// The response to these bytes, with an answer that repeats the request.
    fn said(bytes: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let respond = |request: &Request| Answer::good(TEXT, format!("{request:?}"));
        let answers = thread::spawn(move || answer(server, respond));
        // The other end may have refused before it has read everything.
        let _ = client.write_all(bytes);
        let mut text = Vec::new();
        let _ = client.read_to_end(&mut text);
        drop(client);
        let _ = answers.join().unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn requests_are_taken_apart() {
        let request = "POST /a/b?x=1&y=2 HTTP/1.1\r\nHost: h:1\r\nOrigin: http://h:1\r\n\
                       content-length: 4\r\n\r\nbody and more";
        let answer = said(request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let expected = Request {
            method: "POST".into(),
            path: "/a/b".into(),
            query: "x=1&y=2".into(),
            host: Some("h:1".into()),
            origin: Some("http://h:1".into()),
            body: b"body".into(),
        };
        assert!(answer.ends_with(&format!("\r\n\r\n{expected:?}")), "{answer}");
        assert_eq!(expected.value("y"), Some("2"));
        assert_eq!(expected.value("z"), None);
        let head = said(b"HEAD / HTTP/1.1\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn non_requests_and_excess_are_refused() {
        let many = "a: b\r\n".repeat(MAX_FIELDS + 1);
        for bytes in [
            b"\x16\x03\x01\x00\xff".to_vec(),
            b"GET / HTTP/9\r\n\r\n".to_vec(),
            format!("GET / HTTP/1.1\r\n{many}\r\n").into_bytes(),
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_vec(),
            b"POST / HTTP/1.1\r\nContent-Length: 5000\r\n\r\n".to_vec(),
            b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n".to_vec(),
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
            [b"GET /".to_vec(), vec![b'a'; MAX_HEAD]].concat(),
        ] {
            let answer = said(&bytes);
            assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        }
    }
}
