insert into hookclaim_entries (
    source_kind,
    comment_id,
    position,
    repository_id,
    repository,
    issue_id,
    issue_number,
    github_user_id,
    github_username,
    date,
    minutes,
    description,
    labels,
    source_comment_url,
    commented_at,
    created_at
)
values (
    ?1,
    ?2,
    ?3,
    ?4,
    ?5,
    ?6,
    ?7,
    ?8,
    ?9,
    ?10,
    ?11,
    ?12,
    ?13,
    ?14,
    ?15,
    cast(unixepoch('subsec') * 1000000 as integer)
)
on conflict (source_kind, comment_id, position) do nothing
