//! Whose comments are listened to.

use std::fmt;

use super::command::OUR_MARKER;
use super::payload::Comment;

/// Who may book without anybody asking GitHub: what the signed payload itself vouches for.
///
/// GitHub says `OWNER` and `MEMBER` only where that is so; `NONE` and `CONTRIBUTOR` may still be a member who keeps
/// the membership private, which takes an API call to find out. Local mode makes none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalTrust {
    /// Whether outside collaborators may book as well.
    pub collaborators: bool,
}

/// Why a comment is not listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotHeard {
    /// It is one of our own, or quotes one: answering it would never end.
    OurOwn,
    /// A bot wrote it.
    Bot,
    /// Its author's account is gone.
    NoAuthor,
    /// Its author is not known to belong to the repository's people.
    Outsider,
}

impl fmt::Display for NotHeard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OurOwn => "the comment carries our own marker",
            Self::Bot => "a bot wrote the comment",
            Self::NoAuthor => "the comment has no author any more",
            Self::Outsider => "the author is not an owner or member",
        })
    }
}

impl LocalTrust {
    /// Whether the author of this comment may book.
    ///
    /// # Errors
    ///
    /// [`NotHeard`] says why not.
    pub fn check(self, comment: &Comment) -> Result<(), NotHeard> {
        if comment
            .body
            .as_deref()
            .is_some_and(|body| body.contains(OUR_MARKER))
        {
            return Err(NotHeard::OurOwn);
        }
        let author = comment.user.as_ref().ok_or(NotHeard::NoAuthor)?;
        if author.kind.as_deref() == Some("Bot") {
            return Err(NotHeard::Bot);
        }
        match comment.author_association.as_deref() {
            Some("OWNER" | "MEMBER") => Ok(()),
            Some("COLLABORATOR") if self.collaborators => Ok(()),
            _ => Err(NotHeard::Outsider),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timetracking::payload::User;

    fn comment(kind: &str, association: &str, body: &str) -> Comment {
        Comment {
            body: Some(body.to_owned()),
            user: Some(User {
                kind: Some(kind.to_owned()),
                ..User::default()
            }),
            author_association: Some(association.to_owned()),
            ..Comment::default()
        }
    }

    #[test]
    fn only_people_whom_the_payload_vouches_for_are_heard() {
        let strict = LocalTrust::default();
        let wide = LocalTrust {
            collaborators: true,
        };
        let rows = [
            ("User", "OWNER", Ok(()), Ok(())),
            ("User", "MEMBER", Ok(()), Ok(())),
            ("User", "COLLABORATOR", Err(NotHeard::Outsider), Ok(())),
            (
                "User",
                "CONTRIBUTOR",
                Err(NotHeard::Outsider),
                Err(NotHeard::Outsider),
            ),
            (
                "User",
                "NONE",
                Err(NotHeard::Outsider),
                Err(NotHeard::Outsider),
            ),
            (
                "User",
                "member",
                Err(NotHeard::Outsider),
                Err(NotHeard::Outsider),
            ),
            ("Bot", "MEMBER", Err(NotHeard::Bot), Err(NotHeard::Bot)),
        ];
        for (kind, association, strictly, widely) in rows {
            let comment = comment(kind, association, "/log 1h");
            assert_eq!(strict.check(&comment), strictly, "{kind} {association}");
            assert_eq!(wide.check(&comment), widely, "{kind} {association}");
        }
    }

    #[test]
    fn our_own_comments_and_those_without_an_author_are_not_heard() {
        let trust = LocalTrust::default();
        let own = comment("User", "OWNER", "booked\n<!-- hookclaim:reply 7 -->");
        assert_eq!(trust.check(&own), Err(NotHeard::OurOwn));
        let orphan = Comment {
            user: None,
            ..comment("User", "OWNER", "/log 1h")
        };
        assert_eq!(trust.check(&orphan), Err(NotHeard::NoAuthor));
    }
}
