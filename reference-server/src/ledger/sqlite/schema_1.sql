create table hookclaim_entries (
    id integer primary key autoincrement,
    source_kind text not null
        check (source_kind in ('issue_comment')),
    comment_id integer not null,
    position integer not null
        check (position between 0 and 999),
    repository_id integer not null,
    repository text not null
        check (repository <> ''),
    issue_id integer not null,
    issue_number integer not null
        check (issue_number > 0),
    github_user_id integer not null,
    github_username text not null
        check (github_username <> ''),
    date text not null
        check (date glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]'),
    minutes integer not null
        check (minutes between 1 and 1440),
    description text not null,
    labels text not null
        check (json_valid(labels) and json_type(labels) = 'array'),
    source_comment_url text not null,
    commented_at integer not null,
    created_at integer not null,
    constraint hookclaim_entries_once unique (source_kind, comment_id, position)
) strict;

create index hookclaim_entries_by_date
    on hookclaim_entries (date);
