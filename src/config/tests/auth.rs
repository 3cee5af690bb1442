use super::*;
use crate::access::{Entry, Scope};

const HASH: &str = "b9f195c5cc7ef6afadbfbc42892ad47d3b24c6bc94bb510c4564a90a14e8b799";
const OTHER: &str = "7c222fb2927d828af22f592134e8932480637c0d58ff6c8f4d5d0e4f8b9b0f6e";

fn tokens(loaded: Result<Config, ConfigError>) -> Vec<Entry> {
    loaded.unwrap().auth.tokens
}

fn two() -> String {
    format!(
        "[[auth.tokens]]\nname = 'ci'\nsha256 = '{HASH}'\nnamespace = 'team-a'\nscopes = ['dispatch', 'read']\n\
         expires_at = 2030-01-31T12:00:00Z\n[[auth.tokens]]\nname = 'w'\nsha256 = '{}'\nscopes = ['work']\n\
         [auth.tokens.labels]\nzone = 'b'\n",
        OTHER.to_uppercase()
    )
}

#[test]
fn tokens_are_read_from_the_file_or_from_one_of_their_own() {
    let here = tokens(load(&two(), &[], &Flags::default()));
    let (ci, worker) = (&here[0], &here[1]);
    assert_eq!((ci.name.as_str(), ci.namespace.as_str()), ("ci", "team-a"));
    assert_eq!(ci.scopes, [Scope::Dispatch, Scope::Read].into());
    assert_eq!(ci.expires_at.unwrap().to_rfc3339(), "2030-01-31T12:00:00+00:00");
    assert_eq!((worker.namespace.as_str(), worker.expires_at), ("default", None));
    assert_eq!(worker.labels, [("zone".to_owned(), "b".to_owned())].into());

    let path = temporary(&two());
    let apart = from_env(&[("ROADSTEAD_AUTH__TOKENS_FILE", path.to_str().unwrap())]);
    assert_eq!(tokens(apart), here);
    let both = problems(load(&two(), &[("ROADSTEAD_AUTH__TOKENS_FILE", path.to_str().unwrap())], &Flags::default()));
    assert!(both.len() == 1 && both[0].contains("both set"), "{both:?}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn every_wrong_part_of_a_token_is_named_and_no_hash_is_shown() {
    for (part, with, said) in [
        ("name = 'ci'", "name = 'c i'", "auth.tokens[0].name (from "),
        ("name = 'ci'", "", "auth.tokens[0].name (from "),
        ("name = 'ci'", "name = 'w'", "auth.tokens[1].name (from "),
        (HASH, "rst_secret", "auth.tokens[0].sha256 (from "),
        (HASH, OTHER, "auth.tokens[1].sha256 (from "),
        ("'team-a'", "''", "auth.tokens[0].namespace (from "),
        ("['work']", "['wrok']", "auth.tokens[1].scopes (from "),
        ("['work']", "[]", "auth.tokens[1].scopes (from "),
        ("['work']", "'work'", "auth.tokens[1].scopes (from "),
        ("['work']", "['read']", "auth.tokens[1].labels (from "),
        ("2030-01-31T12:00:00Z", "2030-01-31", "auth.tokens[0].expires_at (from "),
        ("2030-01-31T12:00:00Z", "'soon'", "auth.tokens[0].expires_at (from "),
        ("zone = 'b'", "zone = 'b,c'", "auth.tokens[1].labels.zone (from "),
        ("zone = 'b'", "zone = 1", "auth.tokens[1].labels (from "),
        ("scopes = ['work']", "scopes = ['work']\nsecret = 'rst_secret'", "auth.tokens[1].secret (from "),
    ] {
        assert!(two().contains(part) && part != with);
        let found = problems(load(&two().replacen(part, with, 1), &[], &Flags::default()));
        assert!(found.len() == 1 && found[0].starts_with(said), "{with}: {found:?}");
        for hidden in [HASH, OTHER, "rst_secret"] {
            assert!(!found[0].contains(hidden), "{found:?}");
        }
    }
}

#[test]
fn tokens_that_would_be_none_are_refused() {
    for text in ["[auth]\ntokens = []\n", "[auth]\ntokens = 'rst_secret'\n", "[auth.tokens]\nname = 'ci'\n"] {
        let said = problems(load(text, &[], &Flags::default()));
        assert!(said[0].starts_with("auth.tokens") && !said[0].contains("rst_secret"), "{said:?}");
    }
    for text in
        ["", "[http]\nlisten = '127.0.0.1:1'\n", "[[tokens]]\nname = 'ci'\n", "[[auth.tokens]\nname = 'rst_secret'"]
    {
        let path = temporary(text);
        let said = problems(from_env(&[("ROADSTEAD_AUTH__TOKENS_FILE", path.to_str().unwrap())]));
        let named = said[0].contains(path.to_str().unwrap()) && said[0].starts_with("auth.tokens_file");
        assert!(said.len() == 1 && named && !said[0].contains("rst_secret"), "{said:?}");
        std::fs::remove_file(path).unwrap();
    }
    let said = problems(from_env(&[("ROADSTEAD_AUTH__TOKENS_FILE", "/nowhere/at/all")]));
    assert!(said[0].contains("/nowhere/at/all") && said[0].contains("No such file"), "{said:?}");
}

#[test]
fn tokens_are_printed_by_name_without_their_hashes() {
    let printed = load(&two(), &[], &Flags::default()).unwrap().to_toml_masked();
    for line in ["name = \"ci\"", "sha256 = \"set\"", "namespace = \"team-a\"", "name = \"w\"", "zone = \"b\""] {
        assert!(printed.contains(line), "{line} is missing in {printed}");
    }
    assert!(!printed.to_lowercase().contains(HASH) && !printed.to_lowercase().contains(OTHER));
    assert!(problems(load(&printed, &[], &Flags::default()))[0].contains("sha256"), "it is no file to start with");
}

#[test]
fn an_address_that_others_reach_needs_tokens_or_a_word() {
    for listen in ["0.0.0.0:80", "[::]:80", "192.0.2.1:80"] {
        let env = [("ROADSTEAD_HTTP__LISTEN", listen)];
        let said = problems(from_env(&env));
        for way in ["auth.tokens", "roadstead token new", "127.0.0.1:80", "--insecure", "http.insecure = true"] {
            assert!(said.len() == 1 && said[0].contains(way), "{way} is missing in {said:?}");
        }
        load(&two(), &env, &Flags::default()).unwrap();
        load("", &env, &Flags { insecure: true, ..Flags::default() }).unwrap();
        from_env(&[env[0], ("ROADSTEAD_HTTP__INSECURE", "true")]).unwrap();
        problems(from_env(&[env[0], ("ROADSTEAD_HTTP__INSECURE", "false")]));
    }
    for listen in ["127.0.0.1:80", "127.8.8.8:80", "[::1]:80", "[::ffff:127.0.0.1]:80", "localhost:80"] {
        from_env(&[("ROADSTEAD_HTTP__LISTEN", listen)]).unwrap();
    }
    // Tokens that were meant and are wrong are one problem, not two.
    let broken = two().replace(HASH, "x");
    assert_eq!(problems(load(&broken, &[("ROADSTEAD_HTTP__LISTEN", "0.0.0.0:80")], &Flags::default())).len(), 1);
}
