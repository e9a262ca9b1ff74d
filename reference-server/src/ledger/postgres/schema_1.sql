create table hookclaim_entries (
    id bigint generated always as identity primary key,
    source_kind text not null
        check (source_kind in ('issue_comment')),
    comment_id bigint not null,
    position bigint not null
        check (position between 0 and 999),
    repository_id bigint not null,
    repository text not null
        check (repository <> ''),
    issue_id bigint not null,
    issue_number bigint not null
        check (issue_number > 0),
    github_user_id bigint not null,
    github_username text not null
        check (github_username <> ''),
    date text not null
        check (date ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}$'),
    minutes bigint not null
        check (minutes between 1 and 1440),
    description text not null,
    labels text not null
        check (jsonb_typeof(labels::jsonb) = 'array'),
    source_comment_url text not null,
    commented_at bigint not null,
    created_at bigint not null,
    constraint hookclaim_entries_once unique (source_kind, comment_id, position)
);

create index hookclaim_entries_by_date
    on hookclaim_entries (date);
