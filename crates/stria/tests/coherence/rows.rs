//! The table. Files have mode 666 and directories 777, so that every user may do what a row does,
//! unless the row is about permissions.

use super::{
    inode_rows::{ATTRIBUTES, OPEN_FILES, PERMISSIONS, XATTRS},
    row::Row,
};

/// All rows.
pub const ROWS: &[&[Row]] = &[DATA, NAMES, DIRECTORIES, OPEN_FILES, ATTRIBUTES, PERMISSIONS, XATTRS];

const DATA: &[Row] = &[
    Row::new("write/stat", &["write f one"], "stat f size", "3", &[("write f longer", "6"), ("write f x", "1")]),
    Row::new("write/read", &["write f one"], "cat f", "one", &[("write f longer", "longer"), ("write f x", "x")]),
    Row::new(
        "append/stat",
        &["write f one"],
        "stat f size; cat f",
        "3; one",
        &[("append f two", "6; onetwo"), ("append f !", "7; onetwo!")],
    ),
    Row::new(
        "truncate/stat",
        &["write f four"],
        "stat f size; cat f",
        "4; four",
        &[
            ("truncate f 2", "2; fo"),
            ("truncate f 0", "0; "),
            ("truncate f 70000; truncate f 1; write f five", "4; five"),
        ],
    ),
    Row::new(
        "write by a descriptor/stat",
        &["write f one", "keep k f rw"],
        "stat f size; cat f",
        "3; one",
        &[("fwrite k longer", "6; longer"), ("fwrite k L", "6; Longer"), ("drop k", "6; Longer")],
    ),
    Row::new(
        "migrate/read",
        &["write f one"],
        "cat f; stat f size",
        "one; 3",
        &[("migrate f 2", "one; 3"), ("append f two", "onetwo; 6"), ("migrate f 1", "onetwo; 6")],
    ),
    Row::new(
        "write/read of an open file",
        &["write f one"],
        "fcat k; fstat k size",
        "one; 3",
        &[("append f two", "onetwo; 6"), ("write f three", "three; 5"), ("truncate f 0", "; 0")],
    )
    .holding("keep k f r"),
    Row::new(
        "punch/read",
        &["write f seven"],
        "cat f; stat f size",
        "seven; 5",
        &[("punch f 1 3", "s\0\0\0n; 5"), ("write f four", "four; 4")],
    ),
    Row::new(
        "allocate/stat",
        &["write f one"],
        "stat f size",
        "3",
        &[("allocate f 100", "100"), ("allocate f 50", "100"), ("allocate f 70000", "70000")],
    ),
];

const NAMES: &[Row] = &[
    Row::new(
        "create/negative lookup",
        &[],
        "stat f; open f r; access f e",
        "ENOENT; ENOENT; ENOENT",
        &[
            ("create f 666", "there; ok; ok"),
            ("unlink f", "ENOENT; ENOENT; ENOENT"),
            ("write f again", "there; ok; ok"),
        ],
    ),
    Row::new("create/create", &["write g x"], "stat f", "ENOENT", &[("create f 666", "there")]).finally(&[
        ("create f 666", "EEXIST"),
        ("mkdir f 777", "EEXIST"),
        ("symlink x f", "EEXIST"),
        ("mkfifo f 666", "EEXIST"),
    ]),
    Row::new("mkdir/create", &[], "stat f", "ENOENT", &[("mkdir f 777", "there")]).finally(&[
        ("create f 666", "EEXIST"),
        ("open f w", "EISDIR"),
        ("write f/g x", "ok"),
    ]),
    Row::new(
        "mkdir/negative lookup",
        &[],
        "stat d/f; stat d kind",
        "ENOENT; ENOENT",
        &[("mkdir d 777", "ENOENT; 40000"), ("write d/f x", "there; 40000")],
    ),
    Row::new(
        "symlink/negative lookup",
        &["write f one"],
        "cat l; readlink l",
        "ENOENT; ENOENT",
        &[("symlink f l", "one; f")],
    ),
    Row::new("link/negative lookup", &["write f one"], "cat g", "ENOENT", &[("link f g", "one")]),
    Row::new(
        "mknod/stat",
        &[],
        "stat p kind",
        "ENOENT",
        &[("mkfifo p 666", "10000"), ("unlink p; mksocket p 666", "140000")],
    ),
    Row::new(
        "rename/lookup",
        &["write a one"],
        "stat a; cat b",
        "there; ENOENT",
        &[("rename a b", "ENOENT; one"), ("rename b a", "there; ENOENT")],
    ),
    Row::new(
        "rename to another directory/lookup",
        &["mkdir d 777", "write a one"],
        "cat a; cat d/a",
        "one; ENOENT",
        &[("rename a d/a", "ENOENT; one"), ("rename d/a a", "one; ENOENT")],
    ),
    Row::new(
        "file replaced by rename/read",
        &["write a one", "write b longer"],
        "cat a; stat a size; stat b",
        "one; 3; there",
        &[("rename b a", "longer; 6; ENOENT"), ("write b 4; rename b a", "4; 1; ENOENT")],
    ),
    Row::new(
        "unlink/open",
        &["write f one"],
        "open f r; stat f; access f r",
        "ok; there; ok",
        &[("unlink f", "ENOENT; ENOENT; ENOENT"), ("write f new", "ok; there; ok")],
    )
    .finally(&[("cat f", "new")]),
    Row::new("unlink/unlink", &["write f one"], "stat f", "there", &[("unlink f", "ENOENT")]).finally(&[
        ("unlink f", "ENOENT"),
        ("rename f g", "ENOENT"),
        ("link f g", "ENOENT"),
        ("open f w", "ENOENT"),
    ]),
    Row::new(
        "unlink and create/read",
        &["write f one"],
        "cat f; stat f size",
        "one; 3",
        &[("unlink f; write f other", "other; 5"), ("unlink f; write f x", "x; 1")],
    ),
    Row::new(
        "exchange/lookup",
        &["write a one", "write b longer"],
        "cat a; cat b; stat a size",
        "one; longer; 3",
        &[("exchange a b", "longer; one; 6"), ("exchange a b", "one; longer; 3")],
    ),
    Row::new(
        "exchange of directory and file/lookup",
        &["mkdir a 777", "write a/f in", "write b file"],
        "cat a/f; cat b/f; stat b kind",
        "in; ENOTDIR; 100000",
        &[("exchange a b", "ENOTDIR; in; 40000"), ("exchange a b", "in; ENOTDIR; 100000")],
    ),
    Row::new(
        "symlink replaced/readlink",
        &["symlink one l"],
        "readlink l; stat l size",
        "one; 3",
        &[("unlink l; symlink three l", "three; 5"), ("symlink target m; rename m l", "target; 6")],
    ),
    Row::new(
        "symlink replaced/path walk",
        &["mkdir a 777", "mkdir b 777", "write a/f one", "write b/f two", "symlink a l"],
        "cat l/f",
        "one",
        &[("symlink b m; rename m l", "two")],
    ),
    Row::new(
        "target of a symlink changed/read",
        &["write f one", "symlink f l"],
        "cat l",
        "one",
        &[("write g two; rename g f", "two"), ("unlink f", "ENOENT")],
    ),
    Row::new(
        "O_TMPFILE and link/negative lookup",
        &[],
        "stat f size; names .",
        "ENOENT; ",
        &[("publish f one", "3; f"), ("publish g longer; rename g f", "6; f")],
    ),
    Row::new(
        "RENAME_NOREPLACE/negative lookup",
        &["write a one"],
        "cat a; cat b",
        "one; ENOENT",
        &[("noreplace a b", "ENOENT; one"), ("noreplace b a", "one; ENOENT")],
    ),
    Row::new("create/RENAME_NOREPLACE", &["write a one"], "stat b", "ENOENT", &[("write b x", "there")])
        .finally(&[("noreplace a b", "EEXIST"), ("cat b", "x")]),
    Row::new(
        "link/stat",
        &["write f one"],
        "stat f links; stat g links",
        "1; ENOENT",
        &[("link f g", "2; 2"), ("unlink f", "ENOENT; 1"), ("rename g f", "1; ENOENT")],
    ),
    Row::new(
        "hard link removed/stat",
        &["write f one", "link f g"],
        "stat g links; cat g",
        "2; one",
        &[("unlink f", "1; one"), ("write g two; link g f", "2; two"), ("write h x; rename h f", "1; two")],
    ),
];

const DIRECTORIES: &[Row] = &[
    Row::new(
        "create/readdir",
        &[],
        "names .",
        "",
        &[
            ("write a x", "a"),
            ("write b x; mkfifo c 666; symlink x d", "a b c| d@"),
            ("unlink a", "b c| d@"),
            ("rename b a", "a c| d@"),
        ],
    ),
    Row::new(
        "names with restored times/readdir",
        &["write f x", "utimens . 1000"],
        "names .; fnames d",
        "f; f",
        &[
            ("write g x; utimens . 1000", "f g; f g"),
            ("unlink f; utimens . 1000", "g; g"),
            ("rename g h; utimens . 1000", "h; h"),
        ],
    )
    .holding("keep d . r"),
    Row::new(
        "setstripe/readdir",
        &["write f x"],
        "names .; fnames d",
        "f; f",
        &[("setstripe g 1", "f g; f g"), ("unlink f; setstripe h 2", "g h; g h")],
    )
    .holding("keep d . r"),
    Row::new("mkdir/readdir", &[], "names .", "", &[("mkdir d 777", "d/"), ("rmdir d", ""), ("write d x", "d")]),
    Row::new(
        "mkdir/stat of the directory",
        &["mkdir d 777"],
        "names d; stat d links",
        "; 2",
        &[("mkdir d/a 777", "a/; 3"), ("mkdir d/b 777", "a/ b/; 4"), ("rmdir d/a", "b/; 3"), ("rename d/b b", "; 2")],
    ),
    Row::new(
        "create/times of the directory",
        &["mkdir d 777", "utimens d 1000"],
        "stat d mtime",
        "1000",
        &[("write d/f x; utimens d 2000", "2000"), ("utimens d 3000", "3000")],
    ),
    Row::new(
        "create/age of the directory",
        &["mkdir d 777", "utimens d 1000"],
        "stat d age",
        "old",
        &[("write d/f x", "new")],
    ),
    Row::new(
        "unlink/age of the directory",
        &["mkdir d 777", "write d/f x", "utimens d 1000"],
        "stat d age",
        "old",
        &[("unlink d/f", "new")],
    ),
    Row::new(
        "rename/age of the directories",
        &["mkdir a 777", "mkdir b 777", "write a/f x", "utimens a 1000", "utimens b 1000"],
        "stat a age; stat b age",
        "old; old",
        &[("rename a/f b/f", "new; new")],
    ),
    Row::new(
        "rename of a directory/path walk",
        &["mkdir d 777", "mkdir d/e 777", "write d/e/f one"],
        "cat d/e/f; cat x/e/f",
        "one; ENOENT",
        &[("rename d x", "ENOENT; one"), ("rename x d", "one; ENOENT")],
    ),
    Row::new(
        "rename in the middle of a path/path walk",
        &["mkdir a 777", "mkdir a/b 777", "mkdir a/b/c 777", "write a/b/c/f one", "mkdir z 777"],
        "cat a/b/c/f; names a; names z; cat z/b/c/f",
        "one; b/; ; ENOENT",
        &[("rename a/b z/b", "ENOENT; ; b/; one"), ("rename z/b a/b", "one; b/; ; ENOENT")],
    ),
    Row::new(
        "rename of a directory/parent",
        &["mkdir a 777", "mkdir b 777", "mkdir a/d 777", "write a/x one", "write b/x two"],
        "cat a/d/../x; cat b/d/../x",
        "one; ENOENT",
        &[("rename a/d b/d", "ENOENT; two"), ("rename b/d a/d", "one; ENOENT")],
    ),
    Row::new(
        "directory replaced by a directory/readdir",
        &["mkdir a 777", "mkdir b 777", "write a/f one"],
        "names b; stat a; stat b/f",
        "; there; ENOENT",
        &[("rename a b", "f; ENOENT; there")],
    ),
    Row::new(
        "directory replaced by a file/path walk",
        &["mkdir d 777"],
        "stat d kind; names d; stat d/f",
        "40000; ; ENOENT",
        &[
            ("rmdir d; write d one", "100000; ENOTDIR; ENOTDIR"),
            ("unlink d; mkdir d 777; write d/f x", "40000; f; there"),
        ],
    ),
    Row::new(
        "exchange of directories/path walk",
        &["mkdir a 777", "mkdir b 777", "write a/f one", "write b/f two"],
        "cat a/f; cat b/f",
        "one; two",
        &[("exchange a b", "two; one")],
    ),
    Row::new("rmdir/create", &["mkdir d 777"], "stat d; stat d/f", "there; ENOENT", &[("rmdir d", "ENOENT; ENOENT")])
        .finally(&[
            ("create d/f 666", "ENOENT"),
            ("mkdir d/e 777", "ENOENT"),
            ("names d", "ENOENT"),
            ("mkdir d 777", "ok"),
        ]),
    Row::new("create/rmdir", &["mkdir d 777"], "stat d; names d", "there; ", &[("write d/f x", "there; f")])
        .finally(&[("rmdir d", "ENOTEMPTY"), ("cat d/f", "x")]),
    Row::new("rmdir/create in an open directory", &["mkdir d 777"], "fstat k kind", "40000", &[("rmdir d", "40000")])
        .holding("keep k d d")
        .finally(&[("create d/f 666", "ENOENT")]),
];
