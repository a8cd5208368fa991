"""Readers of encoded images: folders, lists of files, archives, LMDB, and several of them."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpca.storage.errors import DataError
from dpca.storage.readers import Reader, Refused, open_reader
from tests.storage.sources.made_sources import (
    LFW,
    encoded,
    jpegs,
    member,
    pixels,
    pngs,
    write_folder,
    write_lsun,
    write_tar,
    write_zip,
)

FILES = {**jpegs(5), "img/readme.txt": b"hello", **pngs(3)}
IMAGES = {name: payload for name, payload in FILES.items() if not name.endswith(".txt")}


def check(reader: Reader, expected: dict[str, bytes]) -> None:
    """Compare the order, names, parts and streams of a reader with the files that were packed."""
    names, payloads = list(expected), list(expected.values())
    assert reader.encoded
    assert list(reader.names) == names
    assert len(reader) == len(names)
    everything = list(range(len(names)))
    assert next(iter(reader.stream([everything]))) == payloads
    some = [everything[1:3], everything[4:5], everything[5:]]
    assert list(reader.stream(some)) == [[payloads[i] for i in indices] for indices in some]
    if reader.random_access:
        part = pickle.loads(pickle.dumps(reader.part([0, 2, len(names) - 1])))
        assert part() == [payloads[0], payloads[2], payloads[-1]]
        assert len(pickle.dumps(reader.part([0, 2]))) < 1500


def pack(kind: str, folder: Path, files: dict[str, bytes] = FILES) -> Path:
    if kind == "folder":
        return write_folder(folder / "tree", files)
    if kind.startswith("zip"):
        return write_zip(folder / "a.zip", files, zipfile.ZIP_STORED if kind == "zip" else zipfile.ZIP_DEFLATED)
    compression = kind.partition(".")[2]
    return write_tar(folder / f"a.{kind}", files, compression)


ARCHIVES = ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip", "zip deflated"]


@pytest.mark.parametrize("kind", ARCHIVES)
def test_archives_in_their_order(kind: str, tmp_path: Path) -> None:
    reader = open_reader(pack(kind, tmp_path))
    check(reader, IMAGES)
    assert reader.ignored == 1
    assert not reader.refused
    assert reader.random_access == (kind in ("tar", "zip", "zip deflated"))


def test_a_folder_is_sorted_by_relative_path(tmp_path: Path) -> None:
    files = {
        "b/2.jpg": b"x",
        "b/10.JPEG": b"y",
        "a.png": b"z",
        "c/d/e.tif": b"t",
        "c/d/e.webp": b"w",
        "z.tiff": b"f",
    }
    hidden = {".hidden.jpg": b"-", ".git/x.jpg": b"-", "__MACOSX/a.jpg": b"-", "a/._b.jpg": b"-"}
    reader = open_reader(write_folder(tmp_path / "t", {**files, **hidden, "Thumbs.db": b"-", "b/notes": b"-"}))
    check(reader, {name: files[name] for name in sorted(files)})
    assert reader.ignored == 2
    assert reader.kind == "folder"
    assert reader.name == "t"


def test_links_in_a_folder_are_followed_once(tmp_path: Path) -> None:
    elsewhere = write_folder(tmp_path / "elsewhere", {"far.jpg": b"far", "deep/er.jpg": b"deep"})
    tree = write_folder(tmp_path / "tree", {"a.jpg": b"a", "sub/b.jpg": b"b"})
    (tree / "linked.jpg").symlink_to(elsewhere / "far.jpg")
    (tree / "folder").symlink_to(elsewhere)
    (tree / "sub" / "up").symlink_to(tree)
    (tree / "sub" / "dead.jpg").symlink_to(tmp_path / "nothing")
    reader = open_reader(tree)
    names = ["a.jpg", "folder/deep/er.jpg", "folder/far.jpg", "linked.jpg", "sub/b.jpg", "sub/dead.jpg"]
    assert list(reader.names) == names
    *payloads, dead = reader.fetch(range(6))
    assert payloads == [b"a", b"deep", b"far", b"far", b"b"]
    assert dead == Refused("cannot be read (No such file or directory)")


def test_a_pipe_named_like_an_image_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jpg")
    assert open_reader(tmp_path).fetch([0]) == [Refused("is a device or pipe, not a file")]


def test_stores_inside_a_folder_are_not_searched(tmp_path: Path) -> None:
    files = {"a.jpg": b"a", "out.zarr/zarr.json": b"{}", "out.zarr/b.jpg": b"b"}
    work = {"out2.zarr.partial/lock": b"", "out2.zarr.partial/store/c/0": b"", "x.partial/c.jpg": b"c"}
    reader = open_reader(write_folder(tmp_path / "t", {**files, **work}))
    assert list(reader.names) == ["a.jpg", "x.partial/c.jpg"]
    assert reader.ignored == 0


def test_one_file_and_lists_of_files(tmp_path: Path) -> None:
    tree = write_folder(tmp_path / "t", IMAGES)
    one = open_reader(tree / "img" / "000003.jpg")
    assert list(one.names) == ["000003.jpg"]
    assert one.fetch([0]) == [IMAGES["img/000003.jpg"]]
    check(open_reader(str(tree / "img" / "*.jpg")), {n[4:]: p for n, p in IMAGES.items() if n.endswith("jpg")})
    check(
        open_reader(str(tmp_path / "**" / "*.png")),
        {n[4:]: p for n, p in IMAGES.items() if n.endswith("png")},
    )
    backwards = [tree / name for name in reversed(IMAGES)]
    check(open_reader(backwards), {name[4:]: IMAGES[name] for name in reversed(IMAGES)})


@pytest.mark.parametrize("kinds", [("tar", "zip"), ("tar", "tar.gz"), ("tar.xz", "folder", "zip")])
def test_several_sources_in_order(kinds: tuple[str, ...], tmp_path: Path) -> None:
    expected: dict[str, bytes] = {}
    paths = []
    for i, kind in enumerate(kinds):
        files = {f"{i}-{name}": payload for name, payload in sorted(FILES.items())}
        folder = tmp_path / str(i)
        folder.mkdir()
        paths.append(pack(kind, folder, files))
        expected.update({name: payload for name, payload in files.items() if not name.endswith(".txt")})
    reader = open_reader(paths)
    check(reader, expected)
    assert reader.ignored == len(kinds)
    assert reader.name == f"{paths[0].name} ... {paths[-1].name} ({len(kinds)})"


def test_equal_names_in_several_archives_are_told_apart(tmp_path: Path) -> None:
    write_tar(tmp_path / "p1.tar", jpegs(2))
    write_tar(tmp_path / "p2.tar", jpegs(1))
    reader = open_reader(str(tmp_path / "*.tar"))
    assert list(reader.names) == ["p1.tar/img/000001.jpg", "p1.tar/img/000002.jpg", "p2.tar/img/000001.jpg"]


def test_refusals_of_several_archives_keep_their_places(tmp_path: Path) -> None:
    for i in (1, 2):
        write_tar(
            tmp_path / f"{i}.tar",
            [member(f"{i}a.jpg", b"a"), member(f"../{i}b.jpg", b"b"), member(f"{i}c.jpg", b"c")],
        )
    reader = open_reader(str(tmp_path / "*.tar"))
    assert sorted(reader.refused) == [1, 4]
    assert isinstance(reader.fetch(range(6))[4], Refused)


def test_celeba_as_published(tmp_path: Path) -> None:
    files = {"img_align_celeba/": b"", **{f"img_align_celeba/{name[4:]}": p for name, p in jpegs(7).items()}}
    path = write_zip(tmp_path / "img_align_celeba.zip", files)
    reader = open_reader(path)
    with zipfile.ZipFile(path) as archive:
        check(reader, {name: archive.read(name) for name in archive.namelist()[1:]})
    assert reader.names[0] == "img_align_celeba/000001.jpg"
    assert reader.ignored == 0


def test_lsun_as_published(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    files = {rng.bytes(20).hex().encode(): encoded(pixels(i), "WEBP") for i in range(6)}
    path = write_lsun(tmp_path / "bedroom_train_lmdb", files)
    expected = {key.decode(): files[key] for key in sorted(files)}
    for source in (path, path / "data.mdb"):
        reader = open_reader(source)
        check(reader, expected)
        assert reader.kind == "lmdb"
        assert reader.name == "bedroom_train_lmdb"


def test_binary_keys_are_named_in_hexadecimal(tmp_path: Path) -> None:
    keys = [bytes([i]) * 20 for i in (1, 200, 255)]
    reader = open_reader(write_lsun(tmp_path / "l", {key: b"payload" + key for key in keys}))
    assert list(reader.names) == [key.hex() for key in keys]
    assert reader.fetch([2]) == [b"payload" + keys[2]]


def test_lfw_tars_against_tarfile() -> None:
    paths = sorted(LFW.glob("lfw-deepfunneled-0*.tar"))
    if len(paths) != 4:
        pytest.skip("needs LFW (four tars) in ../shared/data from the project root")
    reader = open_reader(str(LFW / "lfw-deepfunneled-0?.tar"))
    assert len(reader) == 13_233
    with tarfile.open(paths[2]) as archive:
        members = [m for m in archive if m.isfile()]
        start = reader.names.index(members[0].name)
        for i in (0, 1, 700, len(members) - 1):
            file = archive.extractfile(members[i])
            assert file is not None
            assert reader.names[start + i] == members[i].name
            assert reader.fetch([start + i]) == [file.read()]


class TestFingerprint:
    @pytest.mark.parametrize("kind", ["folder", *ARCHIVES])
    def test_changes_with_names_and_content_alone(self, kind: str, tmp_path: Path) -> None:
        def fingerprint(name: str, files: dict[str, bytes]) -> str:
            (tmp_path / name).mkdir()
            return open_reader(pack(kind, tmp_path / name, files)).fingerprint()

        first = fingerprint("a", FILES)
        assert fingerprint("b", FILES) == first
        assert fingerprint("c", {**FILES, "img/000002.jpg": FILES["img/000002.jpg"] + b"1"}) != first
        assert fingerprint("d", {f"x{name}": payload for name, payload in FILES.items()}) != first

    def test_of_an_archive_does_not_depend_on_its_time(self, tmp_path: Path) -> None:
        path = pack("tar", tmp_path)
        before = open_reader(path).fingerprint()
        os.utime(path, (0, 0))
        assert open_reader(path.rename(tmp_path / "renamed.tar")).fingerprint() == before


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "cut in the middle": lambda content: content[: len(content) // 2],
    "without its end": lambda content: content[:-1100],
    "overwritten": lambda content: content[:600] + bytes(range(256)) * 8 + content[600 + 2048 :],
}


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.bz2", "tar.xz"])
@pytest.mark.parametrize("damage", BROKEN)
def test_broken_tars_are_refused_as_a_whole(kind: str, damage: str, tmp_path: Path) -> None:
    # incompressible members, so that every cut hits a compressed one too
    files = {f"{i}.jpg": np.random.default_rng(i).bytes(700) for i in range(40)}
    path = pack(kind, tmp_path, files)
    content = path.read_bytes()
    if kind == "tar" and damage == "without its end":
        path.write_bytes(content[: 40 * (512 + 1024)])  # right after the last member
    else:
        path.write_bytes(BROKEN[damage](content))
    with pytest.raises(DataError, match="truncated") as caught:
        list(open_reader(path).names)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("of_all", [{}, {"path": "all.jpg"}], ids=["", "global name"])
def test_headers_against_tarfile(form: int, of_all: dict[str, str], tmp_path: Path) -> None:
    names = ["a.jpg", "d/" + "n" * 94 + ".jpg", "d" * 60 + "/" + "n" * 60 + ".jpg", "é.jpg", "d/last.jpg"]
    if form != tarfile.USTAR_FORMAT:
        names.insert(3, "long" * 70 + ".jpg")
    with tarfile.open(tmp_path / "a.tar", "w", format=form, pax_headers=of_all) as archive:
        for i, name in enumerate(names):
            info, payload = member(name, bytes([i]) * (511 + i))
            archive.addfile(info, io.BytesIO(payload))
    with tarfile.open(tmp_path / "a.tar") as archive:
        expected = [(one.name, archive.extractfile(one).read()) for one in archive]  # type: ignore[union-attr]
    reader = open_reader(tmp_path / "a.tar")
    assert list(zip(reader.names, reader.fetch(range(len(names))), strict=True)) == expected


def test_tarfile_reads_no_header_with_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["ÿ" * (i % 90) + f"{i:04d}.jpg" for i in range(200)]
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        for i, name in enumerate(names):
            info, payload = member(name, bytes(i))
            archive.addfile(info, io.BytesIO(payload))
    found, read = tarfile.TarFile.next, []
    monkeypatch.setattr(tarfile.TarFile, "next", lambda self: read.append(self.offset) or found(self))
    assert len(open_reader(tmp_path / "a.tar").names) == len(names)
    assert len(read) <= 3  # the first and the end


@pytest.mark.parametrize("at", [3, 101, 130, 150, 156, 258, 400])
def test_a_damaged_header_is_refused(at: int, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {f"{i}.jpg": bytes(100) for i in range(4)})
    content = bytearray(path.read_bytes())
    content[2 * 1024 + at] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="truncated"):
        list(open_reader(path).names)


@pytest.mark.parametrize("cut", [1, 30, 500])
def test_broken_zips_are_refused_as_a_whole(cut: int, tmp_path: Path) -> None:
    path = pack("zip", tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DataError, match=r"a\.zip.*truncated"):
        open_reader(path)


@pytest.mark.parametrize("kind", ["zip", "zip deflated"])
def test_a_damaged_zip_member_is_refused_alone(kind: str, tmp_path: Path) -> None:
    files = {f"{i}.jpg": np.random.default_rng(i).bytes(3000) for i in range(3)}
    path = pack(kind, tmp_path, files)
    content = bytearray(path.read_bytes())
    content[4000] ^= 0xFF
    path.write_bytes(content)
    first, second, third = open_reader(path).fetch(range(3))
    assert isinstance(second, Refused)
    assert "broken in the archive" in second.reason
    assert [first, third] == [files["0.jpg"], files["2.jpg"]]


def test_a_zip_member_cannot_grow_beyond_its_claim(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"a.jpg": bytes(50 << 20)}, zipfile.ZIP_DEFLATED)
    content = path.read_bytes()
    honest = (50 << 20).to_bytes(4, "little")
    assert content.count(honest) == 2
    path.write_bytes(content.replace(honest, (1000).to_bytes(4, "little")))
    assert open_reader(path).fetch([0]) == [Refused("is broken in the archive (its size or checksum is wrong)")]


def test_hostile_tar_members_are_refused_by_name(tmp_path: Path) -> None:
    members = [
        member("good.jpg", b"good"),
        member("/abs.jpg", b"x"),
        member("../up.txt", b"x"),
        member("sym.jpg", type=tarfile.SYMTYPE, link="/etc/passwd"),
        member("hard.jpg", type=tarfile.LNKTYPE, link="good.jpg"),
        member("latest", type=tarfile.SYMTYPE, link="v1"),
        member("dev.jpg", type=tarfile.CHRTYPE),
        member("pipe", type=tarfile.FIFOTYPE),
        member("folder.jpg", type=tarfile.DIRTYPE),
        member("last.jpg", b"last"),
    ]
    for compression in ("", "gz"):
        reader = open_reader(write_tar(tmp_path / f"a.tar{compression and '.gz'}", members, compression))
        refused = {reader.names[i]: reason for i, reason in reader.refused.items()}
        assert refused == {
            "/abs.jpg": "has a path that leads out of the archive",
            "../up.txt": "has a path that leads out of the archive",
            "sym.jpg": "is a link, not a file",
            "hard.jpg": "is a link, not a file",
            "dev.jpg": "is a device or pipe, not a file",
            "pipe": "is a device or pipe, not a file",
        }
        assert reader.ignored == 1
        everything = next(iter(reader.stream([range(len(reader))])))
        assert [p for p in everything if not isinstance(p, Refused)] == [b"good", b"last"]
        assert [p.reason for p in everything if isinstance(p, Refused)] == list(reader.refused.values())


def test_huge_claims_in_a_tar_cost_nothing(tmp_path: Path) -> None:
    info = tarfile.TarInfo("huge.jpg")
    info.size = 600 << 20
    with open(tmp_path / "a.tar", "wb") as file:  # a sparse file: the member is there, but made of holes
        file.write(info.tobuf())
        file.seek(info.size, os.SEEK_CUR)
        file.write(bytes(10240))
    reader = open_reader(tmp_path / "a.tar")
    assert reader.refused == {0: "has 629,145,600 bytes, more than the limit of 536,870,912 for one image"}


def test_a_header_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 8 << 30
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    with pytest.raises(DataError, match="8,589,93"):
        list(open_reader(tmp_path / "a.tar").names)


def test_hostile_zip_members_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("good.jpg", "../../slip.jpg", "/abs.png", "C:\\x.jpg"):
            archive.writestr(name, b"x")
        link = zipfile.ZipInfo("link.jpg")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, b"/etc/passwd")
        archive.writestr("packed.jpg", b"x" * 100, zipfile.ZIP_BZIP2)
    reader = open_reader(path)
    refused = {reader.names[i]: reason for i, reason in reader.refused.items()}
    out = "has a path that leads out of the archive"
    assert refused == {
        "../../slip.jpg": out,
        "/abs.png": out,
        "C:\\x.jpg": out,
        "link.jpg": "is a link, not a file",
        "packed.jpg": "is packed by zip method 12: only stored and deflated members are supported",
    }
    assert reader.fetch([0]) == [b"x"]


def test_encrypted_zip_members_are_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"a.jpg": b"secret"})
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    assert open_reader(path).refused == {0: "is encrypted"}
