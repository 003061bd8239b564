"""Key of measurements: the processor's name and the instruction sets that its libraries may use."""

from ekya.system.host import instruction_set, processor_name

X86 = "processor\t: 0\nmodel name\t: A Processor 9\nflags\t\t: fpu sse4_1 avx avx2 zzz\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd crc32\n"


def test_processor_x86_has_name_and_extensions(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    path = tmp_path / "cpuinfo"
    path.write_text(X86)
    assert processor_name(path) == "A Processor 9"
    assert instruction_set(path).split()[1:] == ["sse4_1", "avx", "avx2"]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    assert instruction_set(path).endswith("avx2, ONEDNN_MAX_CPU_ISA=SSE41")


def test_processor_without_name_uses_architecture(tmp_path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(ARM)
    assert processor_name(path) == processor_name(tmp_path / "missing") != ""
    assert "asimd" in instruction_set(path).split(",")[0].split()
