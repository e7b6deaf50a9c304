//! The rows of the table that are about inodes: open files, attributes, permissions, extended
//! attributes.

use super::row::Row;

pub const OPEN_FILES: &[Row] = &[
    Row::new(
        "unlink/stat of an open file",
        &["write f one"],
        "fstat k links size; fcat k",
        "1 3; one",
        &[("unlink f", "0 3; one"), ("write f another", "0 3; one")],
    )
    .holding("keep k f r")
    .finally(&[("cat f", "another")]),
    Row::new("unlink/write to an open file", &["write f one"], "fstat k links size", "1 3", &[("unlink f", "0 3")])
        .holding("keep k f rw")
        .finally(&[
            ("fwrite k longer", "ok"),
            ("fcat k", "longer"),
            ("fstat k links size", "0 6"),
            ("stat f", "ENOENT"),
        ]),
    Row::new(
        "replaced by rename/stat of an open file",
        &["write f one", "write g two"],
        "fstat k links; fcat k",
        "1; one",
        &[("rename g f", "0; one")],
    )
    .holding("keep k f r")
    .finally(&[("cat f", "two")]),
    Row::new(
        "link removed/stat of an open file",
        &["write f one", "link f g"],
        "fstat k links",
        "2",
        &[("unlink f", "1"), ("unlink g", "0")],
    )
    .holding("keep k g r"),
    Row::new(
        "rename/stat of an open file",
        &["write f one"],
        "fstat k links size; fcat k",
        "1 3; one",
        &[("rename f g", "1 3; one"), ("write g longer", "1 6; longer"), ("truncate g 1", "1 1; l")],
    )
    .holding("keep k f r"),
    Row::new(
        "chmod/stat of an open file",
        &["write f one"],
        "fstat k mode",
        "666",
        &[("chmod f 606", "606"), ("chmod f 644", "644")],
    )
    .holding("keep k f r"),
    Row::new(
        "chmod/open file stays open",
        &["write f one"],
        "fcat k; open f r",
        "one; ok",
        &[("chmod f 600", "one; EACCES"), ("write f two", "two; EACCES")],
    )
    .holding("keep k f r")
    .user_looks(),
];

pub const ATTRIBUTES: &[Row] = &[
    Row::new(
        "chmod/stat",
        &["write f one"],
        "stat f mode",
        "666",
        &[("chmod f 640", "640"), ("chmod f 4755", "4755"), ("chmod f 606", "606")],
    ),
    Row::new(
        "chmod of a directory/stat",
        &["mkdir d 777"],
        "stat d mode",
        "777",
        &[("chmod d 1777", "1777"), ("chmod d 2775", "2775")],
    ),
    Row::new("fchmod/stat", &["write f one", "keep k f r"], "stat f mode", "666", &[("fchmod k 640", "640")]),
    Row::new(
        "utimens/stat",
        &["write f one", "utimens f 500"],
        "stat f mtime",
        "500",
        &[("utimens f 1000", "1000"), ("utimens f 2000", "2000")],
    ),
    Row::new("write/age", &["write f one", "utimens f 500"], "stat f age", "old", &[("write f two", "new")]),
    Row::new(
        "chown/stat",
        &["write f one"],
        "stat f uid gid",
        "0 0",
        &[("chown f 5002 5003", "5002 5003"), ("chown f 0 5003", "0 5003")],
    )
    .root_changes(),
    Row::new(
        "setfacl/stat",
        &["write f one 600"],
        "stat f mode",
        "600",
        &[("setfacl f 5002 64040", "640"), ("nofacl f; chmod f 600", "600")],
    ),
];

pub const PERMISSIONS: &[Row] = &[
    Row::new(
        "chmod/open",
        &["write f one 644"],
        "open f r; access f r; open f w",
        "ok; ok; EACCES",
        &[
            ("chmod f 600", "EACCES; EACCES; EACCES"),
            ("chmod f 646", "ok; ok; ok"),
            ("chmod f 642", "EACCES; EACCES; ok"),
        ],
    )
    .user_looks(),
    Row::new(
        "chmod of a directory/search",
        &["mkdir d 755", "write d/f one"],
        "stat d/f; open d/f r; names d",
        "there; ok; f",
        &[
            ("chmod d 700", "EACCES; EACCES; EACCES"),
            ("chmod d 711", "there; ok; EACCES"),
            ("chmod d 744", "EACCES; EACCES; f"),
            ("chmod d 755", "there; ok; f"),
        ],
    )
    .user_looks(),
    Row::new(
        "chmod of a directory/deep search",
        &["mkdir a 755", "mkdir a/b 755", "mkdir a/b/c 755", "write a/b/c/f one"],
        "cat a/b/c/f; stat a/b/c; stat a/b/none",
        "one; there; ENOENT",
        &[
            ("chmod a 700", "EACCES; EACCES; EACCES"),
            ("chmod a 755; chmod a/b 600", "EACCES; EACCES; EACCES"),
            ("chmod a/b 701", "one; there; ENOENT"),
        ],
    )
    .user_looks(),
    Row::new("chmod of a directory/create", &["mkdir d 777"], "access d w", "ok", &[("chmod d 755", "EACCES")])
        .user_looks()
        .finally(&[("create d/f 666", "EACCES"), ("mkdir d/e 777", "EACCES")]),
    Row::new(
        "chmod with the sticky bit/unlink",
        &["mkdir d 777", "write d/f x"],
        "stat d mode",
        "777",
        &[("chmod d 1777", "1777")],
    )
    .user_looks()
    .finally(&[("unlink d/f", "EPERM"), ("rename d/f d/g", "EPERM")]),
    Row::new(
        "chown/access",
        &["write f one 600"],
        "open f r; access f rw",
        "EACCES; EACCES",
        &[("chown f 5002 0", "ok; ok"), ("chown f 0 0", "EACCES; EACCES")],
    )
    .root_changes_user_looks(),
    Row::new(
        "chown of a directory/search",
        &["mkdir d 700", "write d/f one"],
        "cat d/f; stat d/none",
        "EACCES; EACCES",
        &[("chown d 5002 0", "one; ENOENT"), ("chown d 0 0", "EACCES; EACCES")],
    )
    .root_changes_user_looks(),
    Row::new(
        "change of the group/access",
        &["write f one 660"],
        "open f r; access f w",
        "EACCES; EACCES",
        &[("chown f - 6000", "ok; ok"), ("chmod f 640", "ok; EACCES")],
    )
    .user_looks(),
    Row::new(
        "setfacl/access",
        &["write f one 600"],
        "open f r; access f r; access f w",
        "EACCES; EACCES; EACCES",
        &[
            ("setfacl f 5002 64040", "ok; ok; EACCES"),
            ("setfacl f 5002 66060", "ok; ok; ok"),
            ("nofacl f", "EACCES; EACCES; EACCES"),
        ],
    )
    .user_looks(),
    Row::new(
        "setfacl denies/access",
        &["write f one 644"],
        "open f r; access f r",
        "ok; ok",
        &[("setfacl f 5002 60444", "EACCES; EACCES"), ("setfacl f 5003 60444", "ok; ok")],
    )
    .user_looks(),
    Row::new(
        "setfacl of a directory/search",
        &["mkdir d 700", "write d/f one"],
        "cat d/f; names d",
        "EACCES; EACCES",
        &[
            ("setfacl d 5002 71010", "one; EACCES"),
            ("setfacl d 5002 75050", "one; f"),
            ("nofacl d; chmod d 700", "EACCES; EACCES"),
        ],
    )
    .user_looks(),
    Row::new(
        "chattr/open",
        &["write f one"],
        "open f w; cat f",
        "ok; one",
        &[("chattr f i", "EPERM; one"), ("chattr f a", "EPERM; one"), ("chattr f -", "ok; one")],
    )
    .root_changes(),
    Row::new("chattr/unlink", &["write f one"], "stat f", "there", &[("chattr f i", "there")])
        .root_changes()
        .finally(&[("unlink f", "EPERM"), ("rename f g", "EPERM"), ("link f g", "EPERM"), ("append f x", "EPERM")]),
    Row::new(
        "setfacl of a directory's default/mkdir",
        &["mkdir d 777"],
        "stat d mode",
        "777",
        &[("setdefault d 5002 76770", "777")],
    )
    .finally(&[
        ("create d/f 666", "ok"),
        ("stat d/f mode", "660"),
        ("mkdir d/e 777", "ok"),
        ("stat d/e mode", "770"),
    ]),
    Row::new(
        "chmod/execute",
        &["symlink /bin/true l"],
        "execute l",
        "ok",
        &[("unlink l; symlink /dev/null l", "EACCES")],
    ),
    Row::new(
        "replaced file with other permissions/open",
        &["write f one 600", "write g two 644"],
        "open f r; cat g",
        "EACCES; two",
        &[("exchange f g", "ok; EACCES"), ("rename g f", "EACCES; ENOENT")],
    )
    .user_looks(),
];

pub const XATTRS: &[Row] = &[
    Row::new(
        "setxattr/getxattr",
        &["write f one"],
        "getxattr f user.a; listxattr f",
        "ENODATA; ",
        &[
            ("setxattr f user.a one", "one; user.a"),
            ("setxattr f user.a another; setxattr f user.b x", "another; user.a user.b"),
            ("removexattr f user.a", "ENODATA; user.b"),
            ("removexattr f user.b", "ENODATA; "),
        ],
    ),
    Row::new(
        "setxattr of a directory/getxattr",
        &["mkdir d 777"],
        "getxattr d user.a; listxattr d",
        "ENODATA; ",
        &[("setxattr d user.a one", "one; user.a"), ("removexattr d user.a", "ENODATA; ")],
    ),
    Row::new(
        "file replaced/getxattr",
        &["write f one", "setxattr f user.a one", "write g two"],
        "getxattr f user.a",
        "one",
        &[("rename g f", "ENODATA"), ("setxattr f user.a two", "two")],
    ),
    Row::new(
        "setxattr security/getxattr",
        &["write f one"],
        "getxattr f security.test",
        "ENODATA",
        &[
            ("setxattr f security.test one", "one"),
            ("setxattr f security.test two", "two"),
            ("removexattr f security.test", "ENODATA"),
        ],
    )
    .root_changes(),
];
