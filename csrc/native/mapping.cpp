#include "native/mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <stdexcept>

#include "native/fork_guard.hpp"
#include "native/process.hpp"

namespace taskd::native {
namespace {

#ifndef MFD_NOEXEC_SEAL
constexpr unsigned MFD_NOEXEC_SEAL = 0x0008U;
#endif
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

int create_memory_file() {
    constexpr const char* kName = "taskd-page";
    // Systems that forbid executable memory files need this flag. Kernels before 6.3 do not know it.
    int fd = memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        throw_errno(errno, "cannot create the memory file of a beat page");
    return fd;
}

std::invalid_argument refusal(const std::string& reason) {
    return std::invalid_argument("This descriptor is not a beat page: " + reason + ".");
}

}  // namespace

Mapping::Mapping(int fd) : fd_(fd), generation_(fork_generation()) {}

Mapping::~Mapping() {
    if (page_ != nullptr) {
        show_on_fork(page_);
        munmap(page_, kPageBytes);
    }
    keep_on_fork(fd_);
    close(fd_);
}

void Mapping::map() {
    void* address = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (address == MAP_FAILED)
        throw_errno(errno, "cannot map a beat page");
    page_ = static_cast<PageLayout*>(address);
    hide_on_fork(page_);
    close_on_fork(fd_);
}

std::shared_ptr<Mapping> Mapping::create(int32_t rank, uint64_t incarnation) {
    if (rank < 0)
        throw std::invalid_argument("A rank is 0 or more, not " + std::to_string(rank) + ".");
    const std::optional<ProcessStat> self = read_process_stat(getpid());
    if (!self)
        throw std::runtime_error("Cannot read /proc/self/stat: mount /proc in this container.");
    std::shared_ptr<Mapping> mapping(new Mapping(create_memory_file()));
    if (ftruncate(mapping->fd_, kPageBytes) != 0)
        throw_errno(errno, "cannot size a beat page");
    if (fcntl(mapping->fd_, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0)
        throw_errno(errno, "cannot seal a beat page");
    mapping->map();
    mapping->created_ = true;
    mapping->identity_ = {getpid(), rank, incarnation, self->start_time};
    IdentityLine& line = mapping->page().identity;
    put(line.version, kPageVersion);
    put(line.pid, mapping->identity_.pid);
    put(line.rank, rank);
    put(line.incarnation, incarnation);
    put(line.start_time, self->start_time);
    put(line.magic, kPageMagic);
    return mapping;
}

std::shared_ptr<Mapping> Mapping::attach(int fd) {
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0 && errno == EBADF)
        throw refusal("number " + std::to_string(fd) + " is not open");
    if (own < 0)
        throw_errno(errno, "cannot duplicate the descriptor of a beat page");
    std::shared_ptr<Mapping> mapping(new Mapping(own));
    const int seals = fcntl(own, F_GET_SEALS);
    if (seals < 0)
        throw refusal("it is no memory file");
    if ((seals & kSizeSeals) != kSizeSeals)
        throw refusal("its size is not sealed, so it could be cut off under a reader");
    struct stat status{};
    if (fstat(own, &status) != 0)
        throw_errno(errno, "cannot look at a beat page");
    if (status.st_size != static_cast<off_t>(kPageBytes)) {
        throw refusal("it has " + std::to_string(status.st_size) + " bytes, not " + std::to_string(kPageBytes));
    }
    const int mode = fcntl(own, F_GETFL);
    if (mode < 0 || (mode & O_ACCMODE) != O_RDWR || (seals & F_SEAL_WRITE) != 0)
        throw refusal("it cannot be written");
    mapping->map();
    const IdentityLine& line = mapping->page().identity;
    if (get(line.magic) != kPageMagic)
        throw refusal("its first bytes are not those of a page");
    if (const uint32_t version = get(line.version); version != kPageVersion) {
        throw refusal("it has version " + std::to_string(version) + " and this build reads version " +
                      std::to_string(kPageVersion) + ", so install the same taskd everywhere");
    }
    mapping->identity_ = {get(line.pid), get(line.rank), get(line.incarnation), get(line.start_time)};
    if (mapping->identity_.pid <= 0)
        throw refusal("its process id is not positive");
    if (mapping->identity_.rank < 0)
        throw refusal("its rank is negative");
    return mapping;
}

bool Mapping::is_ours() const noexcept {
    return created_ && generation_ == fork_generation();
}

}  // namespace taskd::native
