//! Trees as JSON: objects whose members keep their order.

use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Value;

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_unit(),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Tree(parts) => {
                let mut map = serializer.serialize_map(Some(parts.len()))?;
                for (name, part) in parts {
                    map.serialize_entry(name, part)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tree of names and values")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Flag(flag))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = map.next_entry()? {
            parts.push(part);
        }
        Ok(Value::Tree(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_come_back_from_json_in_their_order() {
        let tree = Value::Tree(vec![
            ("z".into(), Value::Number(u64::MAX)),
            ("a".into(), Value::Tree(vec![("10".into(), Value::Flag(true))])),
            ("m".into(), Value::Text("\u{1b}[31m\"".into())),
            ("none".into(), Value::None),
        ]);
        let json = serde_json::to_string(&tree).unwrap();
        assert_eq!(
            json,
            r#"{"z":18446744073709551615,"a":{"10":true},"m":"\u001b[31m\"","none":null}"#
        );
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), tree);
    }

    #[test]
    fn malformed_tree_is_refused() {
        for json in ["[1]", "-1", "1.5", "{\"a\":[]}"] {
            assert!(serde_json::from_str::<Value>(json).is_err(), "{json}");
        }
    }
}
